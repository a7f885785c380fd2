package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// Steps of Clipper's batch size (§4.3.1): plus one after a batch in time, minus a tenth after a late one.
const (
	clipperMore = 1
	clipperLess = 0.9
)

// NewClipper returns Clipper's adaptive batching (Crankshaw et al., NSDI '17, §4.3.1). Each replica runs the queued
// requests at once, up to a size that grows additively until a batch misses the latency objective and then shrinks by
// a tenth. It does not look at deadlines in advance.
//
// Best form: replicas are placed as for Nexus, requests that cannot meet their deadline are dropped before the batch
// (Symphony §4.3 ascribes pruning to Clipper), and a size that was not filled does not grow.
func NewClipper(w *sim.World) sim.Server {
	p := newPartitioned(w, 1, planNodes(w))
	p.next = func(now, freeAt sched.Time, d *device) (int, int, int, sched.Time) {
		for i := range d.sessions {
			// Sessions of a GPU take turns.
			k := (d.turn + i) % len(d.sessions)
			if d.queues[k].Len() > 0 && p.pruneHeads(now, freeAt, d, k) {
				return k, 0, min(d.queues[k].Len(), int(d.cap[k])), 0
			}
		}
		return 0, 0, 0, sched.Never
	}

	// Additive increase while batches fill their limit, multiplicative decrease when one is late.
	p.sent = func(d *device, k, skip, b int, start sched.Time) {
		m := d.sessions[k].model
		switch {
		case start.Add(execTime(w, m, b)) > w.Deadline(d.queues[k].At(skip)):
			d.cap[k] = max(1, d.cap[k]*clipperLess)
		case b == int(d.cap[k]):
			d.cap[k] = min(float64(w.Models[m].Profile.Max()), d.cap[k]+clipperMore)
		}
	}
	return p
}
