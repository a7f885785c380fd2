package sched

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// TestWaysNotReadCannotWin compares the way that is found with the one found when none is passed over for the accuracy of
// those before it, for drawn variants, prices and queues.
func TestWaysNotReadCannotWin(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 11))
	passed := 0
	for range 2000 {
		s := Service{Homes: []uint32{0, 1}, SLO: 100_000_000, Rate: 1000}
		for range 2 + rng.IntN(4) {
			v := Variant{Accuracy: float64(rng.IntN(20)) / 20}
			for range s.Homes {
				table, step := make([]time.Duration, 1+rng.IntN(20)), 1+rng.Int64N(3e6)
				for b := range table {
					table[b] = time.Duration(1e6 + step*int64(b))
				}
				prof, err := profile.New(table)
				if err != nil {
					t.Fatal(err)
				}
				v.Profiles = append(v.Profiles, prof)
			}
			s.Variants = append(s.Variants, v)
		}

		p := NewPartition(Options{})
		for sub := range s.Homes {
			p.SetGPUs(0, uint32(sub), 4)
			p.SetPrice(uint32(sub), rng.Float64()*10, rng.Float64()*10)
		}
		if err := p.AddService(0, 1, s); err != nil {
			t.Fatal(err)
		}
		for n := range 1 + rng.IntN(30) {
			p.Enqueue(0, Request{ID: RequestID(n), Model: 1, Deadline: Time(20e6 + rng.Int64N(60e6))})
		}

		m, _ := p.find(1)
		h := &m.family.homes[rng.IntN(2)]
		grows := rng.IntN(2) == 0
		known, freeAt := float64(rng.IntN(20))/20, Time(rng.Int64N(20e6))
		best, size, most := p.bestWay(0, m, h, 0, freeAt, known, grows)
		all := slices.Clone(h.residents)
		for i := range all {
			if i > 0 && all[i].below <= known {
				passed++
			}
			all[i].below = math.Inf(1)
		}
		whole := *h
		whole.residents = all
		want, wantSize, wantMost := p.bestWay(0, m, &whole, 0, freeAt, known, grows)
		if (best == nil) != (want == nil) || size != wantSize || most != wantMost || best != nil && best.variant != want.variant {
			t.Fatalf("%+v of %d worth %v, want %+v of %d worth %v", best, size, most, want, wantSize, wantMost)
		}
	}
	if passed == 0 {
		t.Error("no way was passed over")
	}
}
