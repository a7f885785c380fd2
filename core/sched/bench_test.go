package sched

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkRequest measures the whole cost of one request: enqueue, candidate, grant, batch, completion. Requests
// arrive round robin over the models at 70 % of the GPUs' capacity.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []struct{ models, gpus int }{{10, 100}, {100, 10000}, {1000, 10000}, {10000, 10000}} {
		b.Run(fmt.Sprintf("models=%d/gpus=%d", size.models, size.gpus), func(b *testing.B) {
			l := newLoop(b, size.models, size.gpus)
			l.run(size.models * 400) // until rates are known and memory is warm
			b.ReportAllocs()
			b.ResetTimer()
			l.run(b.N)
			_, rs := l.s.Stats()
			b.ReportMetric(float64(l.id)/float64(max(1, rs.Grants-rs.Unused)), "requests/batch")
			b.ReportMetric(float64(rs.Unused)/float64(max(1, rs.Grants)), "unused/grant")
		})
	}
}

// TestNoAllocationPerRequest: after warm-up nothing on the request path allocates, also in a crowd.
func TestNoAllocationPerRequest(t *testing.T) {
	for _, size := range []struct {
		models, gpus int
		crowd        bool
	}{{20, 40, false}, {3, 1, true}} {
		l := newLoop(t, size.models, size.gpus)
		l.run(400_000)
		if got := l.s.part.crowds[0].dense; got != size.crowd {
			t.Errorf("%d models on %d GPUs are a crowd: %v, want %v", size.models, size.gpus, got, size.crowd)
		}
		if n := testing.AllocsPerRun(20, func() { l.run(5000) }); n > 0 {
			t.Errorf("%d models on %d GPUs: %v allocations in 5000 requests", size.models, size.gpus, n)
		}
	}
}

// loop is a cluster at a steady rate, with little cost of its own.
type loop struct {
	s      *Scheduler
	models int
	now    Time
	gap    Duration
	id     RequestID
	ends   []Batch // a ring in order of dispatch; equal batches end in about that order
	head   int
	steps  []SpareStep // a ring in order of their ends, since all have one length
	first  int
}

func newLoop(t testing.TB, models, gpus int) *loop {
	l := &loop{s: New(Options{}), models: models}
	p := line(t, 200*time.Microsecond, 2*time.Millisecond, 64)
	for m := range models {
		if err := l.s.AddModel(0, ModelID(m), Model{Profile: p, SLO: 100 * ms}); err != nil {
			t.Fatal(err)
		}
	}
	for g := range gpus {
		if err := l.s.AddGPU(0, GPUID(g), 0); err != nil {
			t.Fatal(err)
		}
	}
	l.gap = max(1, Duration(p.Exec(64))/Duration(64*gpus)*10/7)
	return l
}

func (l *loop) run(n int) {
	for range n {
		l.now = l.now.Add(l.gap)
		for l.head < len(l.ends) && l.ends[l.head].Finish <= l.now {
			b := l.ends[l.head]
			l.head++
			_ = l.s.Complete(l.now, b.ID, b.GPU, b.Finish)
			l.take()
		}
		if l.steps != nil {
			l.endSteps()
		}
		l.id++
		l.s.Enqueue(l.now, Request{ID: l.id, Model: ModelID(int(l.id) % l.models), Deadline: l.now.Add(100 * ms)})
		if l.id&15 == 0 && l.s.NextWake() <= l.now {
			l.s.Advance(l.now)
		}
		l.take()
	}
}

func (l *loop) take() {
	batches, _ := l.s.Actions()
	if len(batches) > 0 && l.head > 4096 && l.head > len(l.ends)/2 {
		l.ends = l.ends[:copy(l.ends, l.ends[l.head:])]
		l.head = 0
	}
	l.ends = append(l.ends, batches...)
	if l.steps != nil {
		l.steps = append(l.steps, l.s.SpareSteps()...)
	}
}

// offerSpare gives idle GPUs steps of 2 ms.
func (l *loop) offerSpare(t testing.TB) {
	l.steps = make([]SpareStep, 0, 1024)
	if err := l.s.OfferSpare(0, 0, SpareWork{ID: 1, Step: 2 * ms, Weight: 1}); err != nil {
		t.Fatal(err)
	}
	l.take()
}

func (l *loop) endSteps() {
	for l.first < len(l.steps) && l.steps[l.first].End <= l.now {
		x := l.steps[l.first]
		l.first++
		_ = l.s.EndSpare(l.now, x.GPU, x.Epoch, x.End)
		l.take()
	}
	if l.first > 4096 && l.first > len(l.steps)/2 {
		l.steps = l.steps[:copy(l.steps, l.steps[l.first:])]
		l.first = 0
	}
}
