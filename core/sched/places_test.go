package sched

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// TestOutlookTellsTheNextFreeGPUs: for any running batches, the outlook is sorted by time and has at most OutlookMax
// entries.
func TestOutlookTellsTheNextFreeGPUs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 5))
	for gpus := 1; gpus < 60; gpus += 7 {
		r := NewRanker(0, Options{})
		for g := range gpus {
			if err := r.AddGPU(0, GPUID(g), 1); err != nil {
				t.Fatal(err)
			}
		}

		// Most GPUs get a batch of their own length, up to the busy set's horizon and beyond.
		var want []Time
		for g := range gpus {
			if g%5 == 0 {
				want = append(want, 0)
				continue
			}
			r.Candidate(0, &Candidate{Model: ModelID(g), Seq: 1, Size: 1, Ripe: true})
			for _, x := range r.Advance(0) {
				end := Time(1 + rng.Int64N(100_000_000))
				r.Free(0, &Free{Model: x.Model, GPU: x.GPU, Epoch: 1, Batch: BatchID(g), FreeAt: end})
				want = append(want, end)
			}
		}
		slices.Sort(want)
		want = want[:min(len(want), OutlookMax)]
		o := r.Outlook()
		if !slices.Equal(o.Free[:o.N], want) {
			t.Errorf("%d GPUs are free at %v, want %v", gpus, o.Free[:o.N], want)
		}
	}
}

// TestManyServicesWithSeveralHomes: more services than are placed all at once are served alike: hardly any request is
// dropped at half of the GPUs' capacity, and the GPUs of every kind are used.
func TestManyServicesWithSeveralHomes(t *testing.T) {
	for _, families := range []int{16, 192} {
		l := newFamilyLoop(t, families, 60, 3)
		l.gap = l.gap * 14 / 10
		for range 60_000 {
			l.run(1)
			if l.s.NextWake() <= l.now {
				l.s.Advance(l.now)
				l.take()
			}
		}
		st, _ := l.s.Stats()
		if n := st.Dropped[vocabulary.DeadlineCannotBeMet]; n > 300 || n+st.Batched < 50_000 {
			t.Errorf("%d families: %d of 60,000 requests dropped and %d in batches, want 300 at most", families, n, st.Batched)
		}
		for k := range uint32(3) {
			if l.s.Load(k).Busy == 0 {
				t.Errorf("%d families: kind %d was never used", families, k)
			}
		}
	}
}

// TestRatesFollowSteps: a bid rate follows a step of demand within two tenths of a second, and does not follow random
// variation of a steady demand.
func TestRatesFollowSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 5))
	var s rateSteps
	came, now := uint32(0), Time(0)
	run := func(rate float64, span Duration) (jumps int) {
		for end := now.Add(span); now < end; {
			now = now.Add(Duration(rng.ExpFloat64() / rate * 1e9))
			came++
			if now.Sub(s.at) < 20*ms {
				continue
			}
			s.update(now, came)
			if Stepped(s.short, s.long) {
				s.jump(s.short)
				jumps++
			}
		}
		return jumps
	}

	run(200, 5_000*ms)
	if n := run(200, 60_000*ms); n > 6 {
		t.Errorf("%d jumps in a minute of a steady rate, want a few at most", n)
	}
	run(800, 200*ms)
	if s.long < 400 {
		t.Errorf("0.2 s after a step from 200 to 800 requests/s the rate is %.0f, want more than 400", s.long)
	}

	// A step that was overestimated is corrected within a second.
	run(1000, 5_000*ms)
	s.jump(1600)
	if run(1000, 300*ms); s.long > 1300 {
		t.Errorf("0.3 s after a step to 1000 requests/s that looked like 1600 the rate is %.0f, want at most 1300", s.long)
	}
}

// TestAGapIsNoFall: a bid rate stays unchanged over a twentieth of a second without arrivals, and falls within a
// fifth of a second when demand falls for good.
func TestAGapIsNoFall(t *testing.T) {
	s := rateSteps{long: 1000, short: 1000}
	came, now := uint32(0), Time(0)
	run := func(each uint32, turns int) (jumps int) {
		for range turns {
			now, came = now.Add(20*ms), came+each
			s.update(now, came)
			if Stepped(s.short, s.long) {
				s.jump(s.short)
				jumps++
			}
		}
		return jumps
	}

	run(20, 50)
	if n := run(0, 3); n > 0 || s.long < 900 {
		t.Errorf("after 60 ms without a request %d jumps, %.0f requests/s; want none, and 1000 less 60 ms", n, s.long)
	}
	run(20, 50)
	if n := run(2, 10); n == 0 || s.long > 400 {
		t.Errorf("0.2 s after a fall from 1000 to 100 requests/s %d jumps, %.0f requests/s; want one, and 400 at most", n, s.long)
	}
}

// TestManyServicesAreLookedAtByBatch: with many services that have several homes, each is checked a few times per
// batch, not per request: batches that gain from growing grow unchecked.
func TestManyServicesAreLookedAtByBatch(t *testing.T) {
	l := newFamilyLoop(t, 1000, 9999, 3)
	l.run(400_000)
	before, rounds := l.s.part.stats.Batches, l.s.part.places.round
	l.run(200_000)
	batches, looks := l.s.part.stats.Batches-before, l.s.part.places.round-rounds
	if batches < 2000 || uint64(looks) > 6*batches {
		t.Errorf("%d schedules for %d batches of some 59 requests, want 6 a batch at most", looks, batches)
	}
}

// TestManyServicesAreNeverAllPlacedForOne shows that a schedule that waited for a GPU on its way back places only the
// services that have changed. Placing all of many services would delay every request by milliseconds.
func TestManyServicesAreNeverAllPlacedForOne(t *testing.T) {
	l := newFamilyLoop(t, 1000, 9999, 3)
	l.run(400_000)
	p := l.s.part
	if len(p.places.queued) < 500 {
		t.Fatalf("%d services wait, want most of 1000", len(p.places.queued))
	}

	p.places.stale = true
	p.out.Frees = append(p.out.Frees, Free{})
	p.Place(l.now)
	p.out.Frees = p.out.Frees[:0]
	if p.places.due > l.now.Add(placeAgain) {
		t.Fatalf("the schedule is due in %v, want %v at most", p.places.due.Sub(l.now), placeAgain)
	}
	p.Advance(l.now.Add(placeAgain))
	if n := len(p.places.set); n > 100 {
		t.Errorf("%d services were placed anew, want only those that changed or are due within a millisecond", n)
	}
}

// TestFewServicesThatBecomeManyKeepTheirTimes shows that services that were placed together, with one common time, get
// times of their own once there are more of them.
func TestFewServicesThatBecomeManyKeepTheirTimes(t *testing.T) {
	l := newFamilyLoop(t, 64, 60, 3)
	for m := range 64 {
		l.id++
		l.s.Join(l.now, Request{ID: l.id, Model: ModelID(m), Deadline: l.now.Add(100 * ms)})
		if m == placedMax-1 {
			l.s.Advance(l.now)
		}
	}

	p := l.s.part
	p.places.stale = true // as after any change
	l.s.Advance(l.now)
	for i := range p.models {
		if m := &p.models[i]; m.family.round > 0 && m.timer > m.family.lookAt {
			t.Errorf("service %d has to be placed again in %v, and its timer rings in %v", i, m.family.lookAt.Sub(l.now), m.timer.Sub(l.now))
		}
	}
}

// TestABiggerGPUMayBeSlower shows that homes are compared by their profiles alone. A variant that gets slower on the GPUs
// that are faster for all others is answered on the other kind.
func TestABiggerGPUMayBeSlower(t *testing.T) {
	l := &loop{s: New(Options{}), models: 2, gap: 5 * ms}
	fast, slow := line(t, time.Millisecond, 5*time.Millisecond, 16), line(t, 3*time.Millisecond, 15*time.Millisecond, 16)
	for m, profiles := range [][]*profile.Profile{{fast, slow}, {slow, fast}} {
		s := Service{SLO: 100 * ms, Homes: []uint32{0, 1}, Rate: 100, Variants: []Variant{{Accuracy: 0.9, Profiles: profiles}}}
		if err := l.s.AddService(0, ModelID(m), s); err != nil {
			t.Fatal(err)
		}
	}
	for g := range 4 {
		if err := l.s.AddGPU(0, GPUID(g), uint32(g%2)); err != nil {
			t.Fatal(err)
		}
	}

	on := map[ModelID][2]int{}
	for i := range 400 {
		l.now = l.now.Add(l.gap)
		m := ModelID(i % 2)
		l.id++
		l.s.Join(l.now, Request{ID: l.id, Model: m, Deadline: l.now.Add(100 * ms)})
		for at := l.s.NextWake(); at <= l.now.Add(l.gap); at = l.s.NextWake() {
			l.s.Advance(max(at, l.now))
			batches, drops := l.s.Actions()
			if len(drops) > 0 {
				t.Fatalf("dropped: %+v", drops)
			}
			for _, b := range batches {
				count := on[b.Model]
				count[b.GPU%2] += len(b.Requests)
				on[b.Model] = count
				if err := l.s.Complete(max(at, l.now), b.ID, b.GPU, b.Finish); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if on[0][1] > 0 || on[1][0] > 0 || on[0][0] < 150 || on[1][1] < 150 {
		t.Errorf("requests by kind of GPU: %v and %v, want each model on the kind that is faster for it", on[0], on[1])
	}
}

// TestTheMostUrgentIsPlacedFirst compares the order in which services get places with a search of the most urgent one.
func TestTheMostUrgentIsPlacedFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 1))
	l := newFamilyLoop(t, 60, 60, 3)
	p := l.s.part
	for i := range p.models {
		m := &p.models[i]
		for range rng.IntN(5) {
			l.id++
			// Some deadlines are equal: then the first service of the set comes first.
			l.s.Join(l.now, Request{ID: l.id, Model: m.id, Deadline: l.now.Add(Duration(60+rng.IntN(8)) * ms)})
		}
	}
	p.places.set = p.places.set[:0]
	for i := range p.models {
		p.models[i].family.placed = 0
		p.places.set = append(p.places.set, int32(i))
	}
	rng.Shuffle(len(p.places.set), func(i, k int) { p.places.set[i], p.places.set[k] = p.places.set[k], p.places.set[i] })

	p.places.order = p.places.order[:0]
	for more := p.orderSet(); more; more = len(p.places.order) > 0 {
		want, first := -1, Never
		for k, at := range p.places.set {
			if m := &p.models[at]; m.family.placed < m.q.len() && m.mustStart() < first {
				want, first = k, m.mustStart()
			}
		}
		if got := int(p.places.order[0].id); got != want {
			t.Fatalf("service %d of the set is next, want %d", got, want)
		}
		m := &p.models[p.places.set[want]]
		m.family.placed = min(m.q.len(), m.family.placed+1+rng.IntN(2))
		p.reorderFirst(m)
	}
	for _, at := range p.places.set {
		if m := &p.models[at]; m.family.placed < m.q.len() {
			t.Errorf("service %d has %d of %d requests placed", at, m.family.placed, m.q.len())
		}
	}
}

// TestARateFollowsASuddenRise: 40 ms after demand rose to eight times, the latest average has most of it, and rates scaled
// to it are not taken for too high while the average over a tenth of a second catches up. Intervals that are longer than
// the latest average do not change what it tells.
func TestARateFollowsASuddenRise(t *testing.T) {
	s := rateSteps{long: 150, short: 150, latest: 150}
	came, now := uint32(0), Time(0)
	run := func(each uint32, every Duration, turns int) {
		for range turns {
			now, came = now.Add(every), came+each
			s.update(now, came)
			if Stepped(s.short, s.long) && s.short < s.long {
				t.Fatalf("%v after the rise: %.0f requests/s, the mean of a tenth of a second is %.0f, want no fall", Duration(now), s.long, s.short)
			}
		}
	}

	run(24, 20*ms, 2)
	if s.latest < 900 || s.short > 600 || s.long > 250 {
		t.Fatalf("40 ms after a rise to 1200 requests/s the averages are %.0f, %.0f and %.0f", s.latest, s.short, s.long)
	}
	s.scale(s.latest / s.long)
	run(24, 20*ms, 20)
	if s.long < 1100 || s.long > 1250 {
		t.Errorf("0.4 s after the rise the rate is %.0f, want 1200", s.long)
	}

	run(120, 100*ms, 3)
	if s.latest < 1150 || s.latest > 1250 {
		t.Errorf("with updates each 100 ms the latest average is %.0f, want 1200", s.latest)
	}
}

// TestAWaitingBatchLeavesFreeGPUs: a batch that waits for more requests takes the GPU that becomes free last before it
// starts, and one that starts now the first.
func TestAWaitingBatchLeavesFreeGPUs(t *testing.T) {
	for _, x := range []struct {
		before Time
		left   []Time
	}{
		{0, []Time{5, 30, 60}},
		{4, []Time{5, 30, 60}},
		{30, []Time{0, 5, 60}},
		{90, []Time{0, 5, 30}},
	} {
		o := Outlook{N: 4}
		copy(o.Free[:], []Time{0, 5, 30, 60})
		if o.takeFree(x.before); !slices.Equal(o.Free[:o.N], x.left) {
			t.Errorf("a batch that starts at %d leaves %v, want %v", x.before, o.Free[:o.N], x.left)
		}
	}

	o := Outlook{N: 1}
	if o.takeFree(9); o.N != 0 {
		t.Errorf("the only GPU is taken, and %d are left", o.N)
	}
}
