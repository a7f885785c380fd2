package sched

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestTheBetterOfTwoOrdersHolds makes the schedules of random queues in both orders: the second holds only if it answers as many
// requests with more worth, and then all of it holds.
func TestTheBetterOfTwoOrdersHolds(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 1))
	usualHeld, otherHeld := 0, 0
	for round := range 300 {
		p := contestedPartition(t, rng)
		s, now := p.places, p.now
		soon := now.Add(p.o.Ctrl + p.o.Data)

		made := func(byBatch bool) (tally, []int) {
			s.byBatch = byBatch
			p.clearPlaces()
			if !p.placeRest(now, soon) {
				t.Fatalf("round %d: the queues need more than %d batches", round, comparedMax)
			}
			s.byBatch = false
			return s.tally, placesOf(p)
		}
		usual, want := made(false)
		contested := p.isContested()
		other, otherPlaces := made(true)
		if contested && other.answered == usual.answered && other.worth > usual.worth {
			want = otherPlaces
			otherHeld++
		} else {
			usualHeld++
		}

		p.clearPlaces()
		p.placeRest(now, soon)
		p.chooseOrder(now, soon)
		if got := placesOf(p); !slices.Equal(got, want) {
			t.Fatalf("round %d: places %v, want %v (worth %v and %v)", round, got, want, usual.worth, other.worth)
		}
		if n := testing.AllocsPerRun(1, func() { p.clearPlaces(); p.placeRest(now, soon); p.chooseOrder(now, soon) }); n > 0 {
			t.Fatalf("round %d: %v allocations", round, n)
		}
	}
	if usualHeld < 30 || otherHeld < 30 {
		t.Errorf("the usual order held %d times and the other %d times of 300, want both at least 30 times", usualHeld, otherHeld)
	}
}

// contestedPartition returns a Partition with some queued requests, scarce GPU time, and few GPUs that are free soon.
func contestedPartition(t *testing.T, rng *rand.Rand) *Partition {
	p := NewPartition(Options{})
	for k := range uint32(3) {
		p.SetGPUs(0, k, 3)
		price := 0.5 + 5*rng.Float64()
		p.SetPrice(k, price, price)
	}
	for id := range 6 {
		s := Service{SLO: Duration(60+rng.IntN(100)) * ms, Homes: []uint32{0, 1, 2}, Rate: 20 + 200*rng.Float64()}
		for v := range 3 {
			x := Variant{Accuracy: 0.8 + 0.05*float64(v)}
			for range s.Homes {
				d := time.Duration((1 + rng.IntN(4)) << v)
				x.Profiles = append(x.Profiles, line(t, d*500*time.Microsecond, d*time.Millisecond, 8))
			}
			s.Variants = append(s.Variants, x)
		}
		if err := p.AddService(0, ModelID(id), s); err != nil {
			t.Fatal(err)
		}
		for range rng.IntN(12) {
			p.Admit(0, ModelID(id), Time(40*ms+Duration(rng.Int64N(int64(s.SLO-40*ms)))), 0)
		}
	}

	for k := range uint32(3) {
		o := Outlook{SubCluster: k}
		for range 3 {
			o.addFree(max(0, Time(Duration(rng.IntN(20)-5)*ms)))
		}
		p.SetOutlook(&o)
	}
	p.chooseQueued()
	p.places.compares = true
	return p
}

// placesOf returns what a schedule has decided: for each service the requests with a place, and by home those that start now.
func placesOf(p *Partition) (all []int) {
	for _, at := range p.places.set {
		f := p.models[at].family
		all = append(all, f.placed, f.pieces)
		for k := range f.homes {
			all = append(all, f.homes[k].starts)
		}
	}
	return all
}
