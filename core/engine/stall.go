package engine

import (
	"downbeat.dev/core/sched"
)

// Stall reports that nothing is reaching the backend for now, as the kernel sees its link. An order would wait behind
// unacknowledged data, so the backend's GPUs get no batches for a while; they keep those that they have. The backend
// is not treated as lost: a few retransmitted packets are normal.
func (b *Backend) Stall() {
	_ = b.e.runInRegistry(func() { b.e.reg.stallBackend(b) })
}

func (g *registry) stallBackend(b *Backend) {
	for _, u := range b.gpus {
		r := g.e.ranker(u.sub)
		t := g.e.beginTurn(&g.spare)
		r.enter(t)

		// A GPU that is held as sick has a longer hold, which only a sound batch ends.
		if !u.health.OnTrial() && !u.health.gone {
			r.s.Hold(t.now, u.id, t.now.Add(sched.StallHold))
		}
		r.advance(g.e, t)
		r.mu.Unlock()
		g.e.finishTurn(t)
	}
}
