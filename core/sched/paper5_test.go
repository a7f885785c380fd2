package sched_test

import (
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sim"
)

// The measurements of section 5 of Symphony, on its workloads.

// table4 runs one of table 4's settings at a rate and returns the median over requests of the batch size and of the
// time in the queue.
func table4(t *testing.T, alpha, beta, slo time.Duration, rate float64) (r *sim.Result, batch int, queued time.Duration) {
	t.Helper()
	p, err := profile.Entry{Name: "m", Alpha: alpha, Beta: beta, SLO: slo}.Profile()
	if err != nil {
		t.Fatal(err)
	}
	w := &sim.World{GPUs: 8, Models: []sim.Model{{Profile: p, SLO: sim.Duration(slo)}}}
	w.Arrivals = arrivals.NewUnit(1, arrivals.Poisson, arrivals.Even(1), rate*5.1+100).At(rate, span, nil)
	var waits []int
	w.Trace = func(_, _ int32, start, _ sim.Time, requests []int32) {
		for _, k := range requests {
			waits = append(waits, int(start)-int(w.Arrivals[k].At))
		}
	}
	r = w.Run(sim.NewDownbeat(w))
	slices.Sort(waits)
	below := 0
	for batch = range r.SizeSum {
		if below += r.SizeSum[batch]; 2*below >= len(waits) {
			break
		}
	}
	return r, batch, time.Duration(waits[len(waits)/2])
}

// TestSection522BatchSizes: near the published goodput the majority of ResNet50's requests run in
// batches of more than 14, and of InceptionResNetV2's of 8 and more (figure 8), as staggered execution
// would have it.
func TestSection522BatchSizes(t *testing.T) {
	r, batch, _ := table4(t, 1053*time.Microsecond, 5072*time.Microsecond, 25*time.Millisecond, 5169)
	if batch <= 14 || bad(r) > 0.01 {
		t.Errorf("ResNet50: half of the requests run in batches of %d and more, %.2f %% bad", batch, 100*bad(r))
	}
	r, batch, _ = table4(t, 5090*time.Microsecond, 18368*time.Microsecond, 70*time.Millisecond, 907)
	if batch < 8 || bad(r) > 0.01 {
		t.Errorf("InceptionResNetV2: half of the requests run in batches of %d and more, %.2f %% bad", batch, 100*bad(r))
	}
}

// TestSection523QueueingDelay: the time in the queue is far below half of the SLO, which execution without
// coordination needs (figure 9).
func TestSection523QueueingDelay(t *testing.T) {
	const slo = 25 * time.Millisecond
	if _, _, queued := table4(t, 1053*time.Microsecond, 5072*time.Microsecond, slo, 5169); queued > slo/5 {
		t.Errorf("half of the requests wait for %v and more, of an SLO of %v", queued, slo)
	}
}

// TestSection54GPUsScale: twice the GPUs serve twice the load (figure 11, right).
func TestSection54GPUsScale(t *testing.T) {
	for gpus := 16; gpus <= 64; gpus *= 2 {
		w := world(t, 20, gpus, 100*time.Millisecond, arrivals.Poisson, 800*float64(gpus))
		if b := bad(w.Run(sim.NewDownbeat(w))); b > 0.01 {
			t.Errorf("%d GPUs: %.2f %% bad at 800 r/s a GPU", gpus, 100*b)
		}
	}
}

// TestSection55NetworkDelay: RDMA's delays (33 µs) hardly cost goodput; those of TCP's tail (5 ms) do, and cost more
// the tighter the SLO is (figure 13).
func TestSection55NetworkDelay(t *testing.T) {
	served := func(slo time.Duration, rate float64, delay sim.Duration) float64 {
		w := world(t, 20, 32, slo, arrivals.Poisson, rate)
		w.Ctrl = delay
		return 1 - bad(w.Run(sim.NewDownbeat(w)))
	}
	for _, c := range []struct {
		slo  time.Duration
		rate float64
	}{{20 * time.Millisecond, 16_000}, {50 * time.Millisecond, 24_000}} {
		if near, none := served(c.slo, c.rate, 33_000), served(c.slo, c.rate, 0); near < 0.99 || none < 0.99 {
			t.Errorf("SLO %v: %.4f served at 33 µs, %.4f without a delay", c.slo, near, none)
		}
	}
	tight, loose := served(20*time.Millisecond, 16_000, 5e6), served(50*time.Millisecond, 24_000, 5e6)
	if tight > 0.9 || loose < tight {
		t.Errorf("at 5 ms %.4f served with an SLO of 20 ms, %.4f with 50 ms", tight, loose)
	}
}
