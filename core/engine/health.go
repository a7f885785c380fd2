package engine

import (
	"downbeat.dev/core/sched"
)

// health is a GPU's health as core/sched judges it, and what its ranker counts by it. Its ranker's lock guards it.
type health struct {
	sched.Health
	gone bool // its backend has left
}

// judge tells a GPU's health of a batch that it has completed, and holds one back that is found sick. mu is held.
func (r *ranker) judge(t *turn, c *completion) {
	h := &c.g.health
	if h.gone {
		return
	}

	// Behind a slow batch others pass their deadlines. They must not end the row of slow ones, which they join where the GPU is slow by
	// its own profile; and a trial that did not run has not shown that the GPU is sound.
	if !c.unrun || c.slow {
		r.note(h, c)
	} else if !h.OnTrial() {
		return
	}

	switch h.Judge(t.now, sched.Peers{GPUs: r.s.GPUs(), Working: int(r.working.Load()), Sound: r.sound, Elsewhere: c.elsewhere}) {
	case sched.Recovered:
		r.tried--
		r.s.Hold(t.now, c.g.id, t.now) // its trial is over
		c.g.sick.Store(false)
		t.recovered = append(t.recovered, c.g)
	case sched.Sickened:
		r.hold(t, c.g)
	}
}

// note adds a batch to a GPU's health, so that the GPU is counted with it before it is compared with the others. mu is held.
func (r *ranker) note(h *health, c *completion) {
	before := h.Health
	h.Note(c.failed, c.slow)
	r.countChange(&before, &h.Health)
}

// countChange counts a GPU anew that works or is sound, and was not, or the other way round.
func (r *ranker) countChange(before, after *sched.Health) {
	if before.Works() != after.Works() {
		r.working.Add(int32(change(after.Works())))
	}
	if before.Sound() != after.Sound() {
		r.sound += change(after.Sound())
	}
}

// change is what a count of GPUs changes by when one comes to be counted or is no more.
func change(counted bool) int {
	if counted {
		return 1
	}
	return -1
}

// hold keeps a GPU from getting batches for a while.
func (r *ranker) hold(t *turn, g *gpu) {
	if !g.health.OnTrial() {
		r.tried++
		g.sick.Store(true)
		t.sickened = append(t.sickened, g)
	}
	r.s.Hold(t.now, g.id, g.health.Hold(t.now))
}

// holdTrials lets a GPU that was held back run one batch, of one request, until it has been judged by that: what else is in a
// batch that proves slow, or behind it, would be lost, too. mu is held.
func (r *ranker) holdTrials(e *Engine, now sched.Time, grants []sched.Grant) {
	for i := range grants {
		if g := e.gpu(grants[i].GPU); g != nil && g.health.OnTrial() {
			grants[i].Trial = true
			r.s.Hold(now, g.id, now.Add(sched.TrialMost))
		}
	}
}

// beginHealth counts a GPU that joins. mu is held.
func (r *ranker) beginHealth(h *health) {
	before := h.Health
	h.Health = sched.HealthyGPU()
	r.countChange(&before, &h.Health)
}

// dropHealth forgets a GPU that leaves. mu is held.
func (r *ranker) dropHealth(h *health) {
	if h.OnTrial() {
		r.tried--
	}
	var none sched.Health
	r.countChange(&h.Health, &none)
	h.Health, h.gone = none, true
}

// logHealth says once of each GPU that it is held back, and once that it serves again. No lock is held.
func (e *Engine) logHealth(t *turn) {
	for _, g := range t.sickened {
		e.log.Error("GPU is held back: its batches fail or take too long, one after the other, and those of others do not",
			"backend", g.b.hello.Name, "gpu", g.name)
	}
	for _, g := range t.recovered {
		e.log.Info("GPU serves again", "backend", g.b.hello.Name, "gpu", g.name)
	}

	clear(t.sickened)
	clear(t.recovered)
	t.sickened, t.recovered = t.sickened[:0], t.recovered[:0]
}
