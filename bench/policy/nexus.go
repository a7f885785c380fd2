package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// NewNexus returns Nexus (Shen et al., SOSP '19) with the given number of frontends. Models are packed onto GPUs for
// the epoch (§6.1), frontends distribute requests without communicating (Symphony §3.3), and each GPU cycles through
// its models without waiting. Early drop (§6.3): a window of the planned batch slides over the queue to the first
// request whose deadline the whole window meets; requests before it are dropped.
//
// Best form: the plan knows the true rates, has the most headroom that the GPUs allow, and leaves models alone on
// GPUs where packing gains little; a batch exceeds the plan if that meets its head's deadline and the GPU serves only
// one model.
func NewNexus(w *sim.World, frontends int) sim.Server {
	p := newPartitioned(w, frontends, planNodes(w))
	p.next = func(now, freeAt sched.Time, d *device) (int, int, int, sched.Time) {
		for i := range d.sessions {
			k := (d.turn + i) % len(d.sessions)
			if d.queues[k].Len() == 0 || !p.pruneHeads(now, freeAt, d, k) {
				continue
			}
			return k, 0, p.earlyDrop(now, freeAt, d, k), 0
		}
		return 0, 0, 0, sched.Never
	}
	return p
}

// earlyDrop slides the window and returns the batch at its position.
func (p *partitioned) earlyDrop(now, freeAt sched.Time, d *device, k int) int {
	q, m, want := &d.queues[k], d.sessions[k].model, d.sessions[k].batch
	h, b := 0, q.fitBatch(p.w, m, 0, now, freeAt)
	for b < min(want, q.Len()-h) {
		h++
		b = q.fitBatch(p.w, m, h, now, freeAt)
	}
	for range h {
		p.w.Drop(q.Take(1)[0])
		d.queued--
	}

	// A shared GPU keeps to its plan, so that the other sessions get their share of the duty cycle.
	if len(d.sessions) > 1 {
		b = min(b, want)
	}
	return b
}
