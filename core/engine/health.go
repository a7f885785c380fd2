package engine

import (
	"downbeat.dev/core/sched"
)

// health is a GPU's health as judged by core/sched, with the ranker's counts of it. The ranker's lock guards it.
type health struct {
	sched.Health
	gone bool // its backend has left
}

// judgeHealth updates a GPU's health by a batch that it completed, and holds the GPU back if it is sick. mu is held.
func (r *ranker) judgeHealth(t *turn, c *completion) {
	h := &c.g.health
	if h.gone {
		return
	}

	// Requests behind a slow batch pass their deadlines, so batches that did not run must not break a series of slow
	// ones; they do count as slow if the GPU is slow by its own profile. And a trial batch that did not run does not
	// prove that the GPU is sound.
	if !c.unrun || c.slow {
		r.noteBatch(h, c)
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
		r.holdGPU(t, c.g)
	}
}

// noteBatch adds a batch to a GPU's health. It counts the GPU with it before comparing with the others. mu is held.
func (r *ranker) noteBatch(h *health, c *completion) {
	before := h.Health
	h.Note(c.failed, c.slow)
	r.countChange(&before, &h.Health)
}

// countChange updates the counts of working and sound GPUs.
func (r *ranker) countChange(before, after *sched.Health) {
	if before.Works() != after.Works() {
		r.working.Add(int32(changeOf(after.Works())))
	}
	if before.Sound() != after.Sound() {
		r.sound += changeOf(after.Sound())
	}
}

// changeOf is the change of a count when a GPU enters or leaves it.
func changeOf(counted bool) int {
	if counted {
		return 1
	}
	return -1
}

// holdGPU keeps a GPU from getting batches for a while.
func (r *ranker) holdGPU(t *turn, g *gpu) {
	if !g.health.OnTrial() {
		r.tried++
		g.sick.Store(true)
		t.sickened = append(t.sickened, g)
	}
	r.s.Hold(t.now, g.id, g.health.Hold(t.now))
}

// holdTrials gives a GPU that was held back one batch of one request as a trial, and holds it again until that batch
// is judged. If it proves slow, no other request is lost with it. mu is held.
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

// logHealth logs once for each GPU that it is held back, and once that it serves again. No lock is held.
func (e *Engine) logHealth(t *turn) {
	for _, g := range t.sickened {
		e.log.Error("GPU is held back: its batches repeatedly fail or take too long, and those of other GPUs do not",
			"backend", g.b.hello.Name, "gpu", g.name)
	}
	for _, g := range t.recovered {
		e.log.Info("GPU serves again", "backend", g.b.hello.Name, "gpu", g.name)
	}

	clear(t.sickened)
	clear(t.recovered)
	t.sickened, t.recovered = t.sickened[:0], t.recovered[:0]
}
