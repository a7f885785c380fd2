package backend

import (
	"sync/atomic"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
)

// counts are a GPU's counters since its start.
type counts struct {
	batches, rows, unsent atomic.Uint64
	busy, fetch, wait     atomic.Int64 // ns
	failed                [model.ReasonCount]atomic.Uint64
}

// noteOrder counts an order and its times.
func (c *counts) noteOrder(o *order) {
	// An order that never ran counts only as a failure.
	if o.ended == 0 {
		return
	}
	c.batches.Add(1)
	c.rows.Add(uint64(o.rows))

	fetched := time.Duration(o.fetched.Load())
	c.fetch.Add(int64(max(fetched-o.came, 0)))
	c.wait.Add(int64(max(o.began-fetched, 0)))
}

// Stats are the counts of one GPU since its start.
type Stats struct {
	GPU               string
	Batches, Rows     uint64
	Unsent            uint64              // results whose frontend was gone
	Busy, Fetch, Wait time.Duration       // summed over batches
	Failed            [reasonCount]uint64 // by model.Reason
	Lost, Hung        bool
	Failing           bool          // its latest batches have all failed
	Aside             int           // models that run on the processor, as the GPU's kernels do not support them
	Loaded            int           // models that it takes batches of
	Memory            device.Memory // of all its executors
}

// DataLinks returns the kernel's view of the links with frontends.
func (b *Backend) DataLinks() LinkStats { return b.node.Stats().Links() }

// Stats returns one entry per GPU.
func (b *Backend) Stats() []Stats {
	var all []Stats
	for _, g := range b.gpus {
		c := &g.counts
		s := Stats{GPU: g.name, Batches: c.batches.Load(), Rows: c.rows.Load(), Unsent: c.unsent.Load(), Busy: time.Duration(c.busy.Load()),
			Fetch: time.Duration(c.fetch.Load()), Wait: time.Duration(c.wait.Load()), Lost: g.lost.Load(), Hung: g.hung.Load(), Failing: g.inRow.Load() >= failingMin}

		for i := range c.failed {
			s.Failed[i] = c.failed[i].Load()
		}

		// A model is loaded on a GPU if it has a route there.
		s.Memory = g.sumMemory()
		for _, r := range *g.routes.Load() {
			if r != nil {
				s.Loaded++
				if r.isAside() {
					s.Aside++
				}
			}
		}

		all = append(all, s)
	}
	return all
}

// sumMemory returns the memory use of all of the GPU's executors.
func (g *gpu) sumMemory() (sum device.Memory) {
	for _, e := range g.executors {
		sum.Add(e.Memory())
	}
	return sum
}
