package sched

import (
	"math"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// TestBatchesOutlastABurst shows that a price above the usual one falls to it within a long batch, that a batch of no length
// pays the present one, and that a price below the usual one stays.
func TestBatchesOutlastABurst(t *testing.T) {
	raised := price{now: 9, usual: 1}
	if got := raised.over(1); math.Abs(got-9) > 1e-6 {
		t.Errorf("a batch of 1 ns pays %v, want 9", got)
	}

	// The mean of 1 + 8·e^(−t/0.2) over one span.
	if got, want := raised.over(200*ms), 1+8*(1-1/math.E); math.Abs(got-want) > 1e-9 {
		t.Errorf("a batch of one span pays %v a second, want %v", got, want)
	}

	last := raised.now
	for exec := ms; exec < 100_000*ms; exec *= 2 {
		got := raised.over(exec)
		if got >= last || got <= raised.usual {
			t.Errorf("a batch of %v ms pays %v a second, want between %v and what a shorter one pays, %v", exec/ms, got, raised.usual, last)
		}
		last = got
	}

	for _, low := range []price{{now: 1, usual: 1}, {now: 1, usual: 9}} {
		if got := low.over(500 * ms); got != 1 {
			t.Errorf("at %+v a long batch pays %v, want 1", low, got)
		}
	}
}

// TestLongBatchesAreChosenInABurst shows what the usual price decides: between an accurate variant that takes 100 ms and a light
// one, at a price at which only the present one pays for the light one.
func TestLongBatchesAreChosenInABurst(t *testing.T) {
	for _, c := range []struct {
		now, usual float64
		want       uint16
	}{
		{now: 0.5, usual: 0.5, want: 1}, // 0.05 for 0.1 of accuracy
		{now: 1.2, usual: 1.2, want: 0}, // 0.12
		{now: 1.2, usual: 0.1, want: 1}, // 0.1 and less, as the price falls
		{now: 5, usual: 0.1, want: 0},
		{now: 0.5, usual: 5, want: 1}, // a low price holds
	} {
		p := NewPartition(Options{})
		s := Service{Homes: []uint32{0, 1}, SLO: 400 * ms, Rate: 1}
		for _, v := range []struct {
			accuracy float64
			exec     time.Duration
		}{{0.8, time.Millisecond}, {0.9, 100 * time.Millisecond}} {
			prof := line(t, v.exec, time.Microsecond, 1)
			s.Variants = append(s.Variants, Variant{Accuracy: v.accuracy, Profiles: []*profile.Profile{prof, prof}})
		}
		for sub := range s.Homes {
			p.SetGPUs(0, uint32(sub), 4)
			p.SetPrice(uint32(sub), c.now, c.usual)
		}
		if err := p.AddService(0, 1, s); err != nil {
			t.Fatal(err)
		}
		p.Enqueue(0, Request{ID: 1, Model: 1, Deadline: 400_000_000})

		m, _ := p.find(1)
		way, _, _ := p.bestWay(0, m, &m.family.homes[0], 0, 0, math.Inf(-1), false)
		if way == nil || way.variant != c.want {
			t.Errorf("at a price of %v, usually %v, the way is %+v, want variant %d", c.now, c.usual, way, c.want)
		}
	}
}
