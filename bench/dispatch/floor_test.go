package dispatch

import (
	"fmt"
	"testing"
	"time"
)

// TestFloorMovesWhatTheEngineMoves: every request that the floor gets is in a queue or in a full batch of its model, as often
// as the engine's are, messages stay until their batch is done, and each report is read.
func TestFloorMovesWhatTheEngineMoves(t *testing.T) {
	for _, set := range []Setting{{Models: 10, GPUs: 64, Cores: 1}, {Models: 10, GPUs: 66, Cores: 1, Variants: 2, Kinds: 2}} {
		r, err := newRig(set, new(virtual))
		if err != nil {
			t.Fatal(err)
		}
		f, c := newFloor(r)
		r.closeRig()

		// The queues are not empty at the beginning.
		queued := func() (n uint64) {
			for _, q := range f.queues {
				if q != nil {
					n += uint64(q.n)
				}
			}
			return n
		}
		first := queued()
		v := &virtual{now: 1}
		c.stepVirtual(v, 1e5, time.Second)
		if c.sent == 0 || c.served != c.batches*batchMax || first+c.sent != c.served+queued() {
			t.Errorf("%d requests, %d batches of %d requests, %d of %d queued", c.sent, c.batches, c.served, queued(), first)
		}

		// By Little's law as many batches are on GPUs as start in ℓ, beside those that ended in the calendar's last slot.
		running := len(f.sent) - len(f.unused)
		if want := 1e5 / batchMax * float64(f.took) / 1e9; float64(running) < 0.8*want || float64(running) > 1.3*want+1 {
			t.Errorf("%d batches are on GPUs, want some %.0f", running, want)
		}
		if done := int64(c.batches) - int64(running); f.exec != done*f.took {
			t.Errorf("the reports of %d batches say %d ns", done, f.exec)
		}

		for _, place := range f.unused {
			for i, x := range f.sent[place] {
				if x.Model != f.sent[place][0].Model || i > 0 && x.ID != 0 && x.ID <= f.sent[place][i-1].ID {
					t.Fatalf("place %d: request %d of model %d follows %d of model %d", i, x.ID, x.Model, f.sent[place][i-1].ID, f.sent[place][0].Model)
				}
			}
		}
	}
}

// TestMedianCosts: each field has its own median.
func TestMedianCosts(t *testing.T) {
	c := medianCosts([]costs{{1, 9, 5, 2}, {3, 7, 4, 1}, {2, 8, 6, 3}})
	if c != (costs{2, 8, 5, 2}) {
		t.Errorf("medians %v", c)
	}
}

// BenchmarkTurns has the costs of a request by turns of engine, floor and generator.
func BenchmarkTurns(b *testing.B) {
	for _, set := range []Setting{{Models: 100, GPUs: 10000, Cores: 1}, {Models: 1000, GPUs: 10000, Cores: 1}, {Models: 1000, GPUs: 9999, Cores: 1, Variants: 3}, {Models: 1000, GPUs: 9999, Cores: 1, Variants: 3, Kinds: 3}} {
		b.Run(fmt.Sprintf("models=%d/variants=%d/kinds=%d", set.Models, max(1, set.Variants), max(1, set.Kinds)), func(b *testing.B) {
			for b.Loop() {
				c, err := virtualCosts(set)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(c.engine, "engine-ns")
				b.ReportMetric(c.floor, "floor-ns")
				b.ReportMetric(c.generator, "generator-ns")
				b.ReportMetric(c.ratio, "engine/floor")
			}
		})
	}
}
