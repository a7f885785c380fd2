package engine

import (
	"downbeat.dev/core/sched"
)

// Stall says that nothing arrives at the backend for now, as its link's kernel sees it. An order that were sent would lie
// behind what is not acknowledged, so that the backend's GPUs get no batches for a while; what they have stays. It is far
// from being lost: a few packets that are sent again pass.
func (b *Backend) Stall() {
	_ = b.e.manage(func() { b.e.reg.stallBackend(b) })
}

func (g *registry) stallBackend(b *Backend) {
	for _, u := range b.gpus {
		r := g.e.ranker(u.sub)
		t := g.e.begin(&g.spare)
		r.enter(t)

		// A GPU that is held since it is sick stays so for longer, and only a sound batch ends that.
		if !u.health.OnTrial() && !u.health.gone {
			r.s.Hold(t.now, u.id, t.now.Add(sched.StallHold))
		}
		r.advance(g.e, t)
		r.mu.Unlock()
		g.e.finish(t)
	}
}
