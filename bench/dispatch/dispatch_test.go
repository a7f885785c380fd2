package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"downbeat.dev/core/sched"
)

// TestEveryRequestIsServed runs the rig on virtual time: at half of what the GPUs hold nothing may
// be dropped, batches are full, and what was sent comes out.
func TestEveryRequestIsServed(t *testing.T) {
	v := &virtual{now: 1}
	r, err := newRig(Setting{Models: 10, GPUs: 64, Cores: 1}, v)
	if err != nil {
		t.Fatal(err)
	}
	defer r.closeRig()
	rate := 0.5 * r.set.fullRate()
	r.stepVirtual(v, rate, time.Second)
	r.resetCounts(false)
	r.stepVirtual(v, rate, 2*time.Second)
	c := r.cores[0]
	if c.dropped != 0 || float64(c.served) < 0.95*float64(c.sent) || float64(c.served)/float64(c.batches) < 0.9*batchMax {
		t.Errorf("sent %d served %d dropped %d batches %d", c.sent, c.served, c.dropped, c.batches)
	}
}

// TestFamiliesAreServed runs families on GPUs of three kinds: more than one kind runs batches, nothing is dropped at half of
// what the most accurate variants carry, and nothing is allocated per request.
func TestFamiliesAreServed(t *testing.T) {
	v := &virtual{now: 1}
	r, err := newRig(Setting{Models: 50, GPUs: 200, Cores: 1, Variants: 3, Kinds: 3}, v)
	if err != nil {
		t.Fatal(err)
	}
	defer r.closeRig()
	if len(r.families) != 50 || len(r.e.Stats().Load) != 3 {
		t.Fatalf("%d families on %d kinds of GPUs, want 50 on 3", len(r.families), len(r.e.Stats().Load))
	}

	rate := 0.5 * r.set.fullRate()
	r.stepVirtual(v, rate, time.Second)
	r.resetCounts(false)
	r.stepVirtual(v, rate, time.Second)
	c := r.cores[0]
	if c.dropped != 0 || float64(c.served) < 0.9*float64(c.sent) {
		t.Errorf("sent %d served %d dropped %d", c.sent, c.served, c.dropped)
	}
	used := 0
	for _, x := range r.e.Stats().Load {
		if x.Idle < x.GPUs {
			used++
		}
	}
	if used < 2 {
		t.Errorf("GPUs of %d kinds are in use, want two at least: one carries a third", used)
	}
	if n := testing.AllocsPerRun(5, func() { r.stepVirtual(v, rate, 50*time.Millisecond) }); n > 0.001*rate/20 {
		t.Errorf("%v allocations in %.0f requests", n, rate/20)
	}
}

// TestOverloadDrops: the rig must be able to fail.
func TestOverloadDrops(t *testing.T) {
	v := &virtual{now: 1}
	r, err := newRig(Setting{Models: 10, GPUs: 8, Cores: 1}, v)
	if err != nil {
		t.Fatal(err)
	}
	defer r.closeRig()
	r.stepVirtual(v, 2*r.set.fullRate(), time.Second)
	c := r.cores[0]
	s := Sample{Sent: c.sent, Dropped: c.dropped}
	if s.checkLimits() == nil || float64(c.dropped) < 0.3*float64(c.sent) {
		t.Errorf("twice the capacity: sent %d dropped %d", c.sent, c.dropped)
	}
}

// TestSampleFails: a run fails for a lagging generator, drops, allocations, and when nothing was sent, and
// says which.
func TestSampleFails(t *testing.T) {
	for want, s := range map[string]Sample{
		"nothing": {},
		"lagged":  {Sent: 1000, LagMax: int64(lagLimit) + 1},
		"dropped": {Sent: 1000, Dropped: 2},
		"alloc":   {Sent: 1000, Mallocs: 2},
	} {
		if err := s.checkLimits(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error that says %s", s, err, want)
		}
	}
	if s := (Sample{Sent: 1000, LagMax: int64(lagLimit), Dropped: 1, Mallocs: 1}); s.checkLimits() != nil {
		t.Errorf("%+v: %v", s, s.checkLimits())
	}
}

// TestRequestsAllocateNothing is the engine's promise on its longest path: submit, dispatch,
// execute, done.
func TestRequestsAllocateNothing(t *testing.T) {
	v := &virtual{now: 1}
	r, err := newRig(Setting{Models: 20, GPUs: 100, Cores: 1}, v)
	if err != nil {
		t.Fatal(err)
	}
	defer r.closeRig()
	r.stepVirtual(v, 200e3, 2*time.Second)
	if n := testing.AllocsPerRun(20, func() { r.stepVirtual(v, 200e3, 50*time.Millisecond) }); n > 0 { // 10,000 requests
		t.Errorf("%v allocations per 10,000 requests", n)
	}
}

// ticking is a clock that goes on by a microsecond with each look: cores run as in real time, and no machine stops it.
type ticking struct{ now atomic.Int64 }

func (c *ticking) Now() sched.Time { return sched.Time(c.now.Add(1000)) }

// TestBooksBalance: every request that the cores sent was in a batch, was dropped, or is queued still; a core sends what its
// rate asks for, and delays are measured.
func TestBooksBalance(t *testing.T) {
	const rate, span = 50e3, 200 * time.Millisecond
	for _, set := range []Setting{{Models: 10, GPUs: 100, Cores: 1}, {Models: 10, GPUs: 100, Cores: 2}, {Models: 10, GPUs: 100, Cores: 1, Variants: 2, Kinds: 2}} {
		cores := set.Cores
		r, err := newRig(set, new(ticking))
		if err != nil {
			t.Fatal(err)
		}
		r.resetCounts(true)
		r.runLoad(rate, span, true)

		var sent, served, dropped, delays uint64
		for _, c := range r.cores {
			sent, served, dropped, delays = sent+c.sent, served+c.served, dropped+c.dropped, delays+uint64(len(c.delays))
		}
		queued := uint64(r.e.Stats().Queued)
		if sent != served+dropped+queued || served == 0 || delays == 0 {
			t.Errorf("%d cores: sent %d, served %d, dropped %d, queued %d, %d delays", cores, sent, served, dropped, queued, delays)
		}
		if want := rate * span.Seconds(); cores == 1 && (float64(sent) < want-burst || float64(sent) > want) {
			t.Errorf("one core sent %d requests, its rate asks for %v", sent, want)
		}

		// A sample is of its own run: what the warm-up did is not in it.
		if s := r.measureRate(rate, span/10, span, true); s.Sent == 0 || cores == 1 && s.Sent > sent+burst || !slices.IsSorted(s.Delays) {
			t.Errorf("%d cores: a sample has %d requests, the run before it %d", cores, s.Sent, sent)
		}
		r.closeRig()
	}
}

func TestHighest(t *testing.T) {
	broken := errors.New("too fast")
	best, err := highestRate(context.Background(), 100, 12, func(rate float64) error {
		if rate > 60 {
			return broken
		}
		return nil
	})
	if err != nil || best < 57 || best > 60 {
		t.Errorf("found %v, %v; 60 holds", best, err)
	}
}

// TestNaiveServesAtALowRate: in the time of a bubble, that no neighbour stops, neither misses a request that comes every half
// millisecond, and both miss most of what one GPU cannot serve.
func TestNaiveServesAtALowRate(t *testing.T) {
	const requests = 400
	missed := func(dispatcher func(Setting) naive, gpus int, gap time.Duration) (n uint64) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(-time.Duration(min(0, clock.Now()))) // a bubble's time begins in 2000, before the process
			x := dispatcher(Setting{Models: 4, GPUs: gpus, Cores: 1})
			for k := range uint32(requests) {
				x.enqueue(k%4, int64(clock.Now())+slo)
				time.Sleep(gap)
			}
			time.Sleep(2 * slo)
			n = x.missed()
			x.stop()
		})
		return n
	}

	for name, dispatcher := range map[string]func(Setting) naive{"mutex": newMutexed, "channels": newChannels} {
		if n := missed(dispatcher, 64, 500*time.Microsecond); n != 0 {
			t.Errorf("%s: %d of %d requests missed", name, n, requests)
		}
		if n := missed(dispatcher, 1, 10*time.Microsecond); n == 0 {
			t.Errorf("%s: one GPU serves %d requests within %v", name, requests, time.Duration(slo))
		}
	}
}

// TestNaiveTakesWhatItIsOffered: without a pause at least one burst.
func TestNaiveTakesWhatItIsOffered(t *testing.T) {
	for _, n := range []Naive{{dispatcher: newMutexed}, {dispatcher: newChannels}} {
		if s := n.offerRate(Setting{Models: 4, GPUs: 64, Cores: 1}, 1e12, time.Millisecond); s.Sent < burst || s.Sent%burst != 0 || s.Dropped > s.Sent {
			t.Errorf("sent %d, dropped %d", s.Sent, s.Dropped)
		}
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for set, want := range map[Setting]string{{Models: 0, GPUs: 1, Cores: 1}: "0 models, want 1 to", {Models: 1, GPUs: 0, Cores: 1}: "0 gpus, want 1 to", {Models: 1, GPUs: 1, Cores: 0}: "0 cores, want 1 to",
		{Models: 1, GPUs: 1, Cores: 2}: "2 cores, want 1 to", {Models: 1 << 20, GPUs: 1, Cores: 1}: "1048576 models, want 1 to", {Models: 1, GPUs: 1 << 20, Cores: 1}: "1048576 gpus, want 1 to",
		{Models: 1, GPUs: 2, Cores: 1, Kinds: 3}: "3 kinds: want at most", {Models: 2, GPUs: 2, Cores: 2, Variants: 2}: "2 cores: families"} {
		if _, err := Run(context.Background(), set, Options{}, func(string) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", set, err, want)
		}
	}
}

func TestReports(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, Result{Models: 3, Pass: true}); err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(b.Bytes(), &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range strings.Split("models variants kinds gpus cores rps ns_per_req allocs_per_req grant_p50_ns grant_p99_ns dropped_pct lag_max_ns pass step_ns_per_req floor_ns_per_req generator_ns_per_req floor_ratio", " ") {
		if _, ok := keys[k]; !ok {
			t.Errorf("key %s is missing", k)
		}
	}
	p := []Point{{Setting{Models: 10, GPUs: 8, Cores: 1}, 40, 5, 64}, {Setting{Models: 100, GPUs: 64, Cores: 1}, 50, 6, 64}}
	b.Reset()
	if err := WriteGrowthSVG(&b, p, p); err != nil || !strings.Contains(b.String(), "polyline") {
		t.Error(err, b.String())
	}
	b.Reset()
	if err := WriteGrowthCSV(&b, p); err != nil || !strings.Contains(b.String(), "100,64,50.0,6.0,64.0") {
		t.Error(err, b.String())
	}
}

// BenchmarkStep is the cost per request on virtual time.
func BenchmarkStep(b *testing.B) {
	for _, set := range []Setting{{Models: 100, GPUs: 10000, Cores: 1}, {Models: 1000, GPUs: 10000, Cores: 1}, {Models: 10000, GPUs: 10000, Cores: 1},
		{Models: 1000, GPUs: 9999, Cores: 1, Variants: 3}, {Models: 1000, GPUs: 9999, Cores: 1, Variants: 3, Kinds: 3}} {
		b.Run(fmt.Sprintf("models=%d/gpus=%d/variants=%d/kinds=%d", set.Models, set.GPUs, max(1, set.Variants), max(1, set.Kinds)), func(b *testing.B) {
			v := &virtual{now: 1}
			r, err := newRig(set, v)
			if err != nil {
				b.Fatal(err)
			}
			defer r.closeRig()
			r.stepVirtual(v, 20e6, 300*time.Millisecond)
			r.resetCounts(false)
			b.ReportAllocs()
			b.ResetTimer()
			r.stepVirtual(v, 20e6, time.Duration(float64(b.N)/20e6*1e9))
			c := r.cores[0]
			b.ReportMetric(float64(c.dropped)/float64(c.sent)*100, "dropped-%")
			b.ReportMetric(float64(c.served)/float64(max(1, c.batches)), "requests/batch")
		})
	}
}
