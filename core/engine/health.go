package engine

import (
	"time"

	"downbeat.dev/core/sched"
)

// health is what a ranker has seen of a GPU lately. Its ranker's lock guards it.
type health struct {
	failed, slow uint16 // batches in a row of which every request failed; that took much longer than planned
	works        bool   // the latest batch did not fail; so does a GPU that has run none
	sound        bool   // nor was it slow
	gone         bool   // its backend has left
	holds        uint16 // how often it was held since it was sound
	until        sched.Time
}

// When a GPU is held back, and for how long: twice as long each time that it is found sick again.
const (
	failedMost = 4 // failed batches in a row
	slowMost   = 8 // slow batches in a row
	holdFirst  = sched.Duration(100 * time.Millisecond)
	holdMost   = sched.Duration(10 * time.Second)
	holdShifts = 7                           // 100 ms to 10 s
	trialMost  = sched.Duration(time.Second) // that a GPU on trial waits for the report of its one batch
)

// isSlow says whether a batch took so much longer than planned that jitter does not explain it.
func isSlow(exec, planned sched.Duration) bool {
	return exec > planned+planned/2+sched.Duration(2*time.Millisecond)
}

// judge follows the health of a GPU that has completed a batch, and holds one back that is sick, unless the others
// that serve the model are no better: then it is the requests, the models or the profile that are wrong. mu is held.
func (r *ranker) judge(t *turn, c *completion) {
	// Behind a slow batch others pass their deadlines. They must not end the row of slow ones.
	h := &c.g.health
	if c.unrun || h.gone {
		return
	}

	h.failed, h.slow = streak(h.failed, c.failed), streak(h.slow, c.slow)
	r.countState(h, h.failed == 0, h.failed == 0 && h.slow == 0)

	if h.sound {
		if h.holds > 0 {
			h.holds = 0
			r.tried--
			r.s.Hold(t.now, c.g.id, t.now) // its trial is over
			c.g.sick.Store(false)
			t.recovered = append(t.recovered, c.g)
		}
		return
	}
	if t.now < h.until || !r.isOutlier(h, c.elsewhere) {
		return
	}
	r.hold(t, c.g)
}

// streak returns how many batches in a row were so, after one more that is or is not.
func streak(n uint16, again bool) uint16 {
	if !again {
		return 0
	}
	return min(n+1, 1<<15)
}

// countState notes whether a GPU works, and whether it is sound.
func (r *ranker) countState(h *health, works, sound bool) {
	if h.works != works {
		r.working.Add(int32(change(works)))
	}
	if h.sound != sound {
		r.sound += change(sound)
	}
	h.works, h.sound = works, sound
}

// change is what a count of GPUs changes by when one comes to be counted or is no more.
func change(counted bool) int {
	if counted {
		return 1
	}
	return -1
}

// isOutlier says whether a GPU has been sick for long enough while others are better: one of them that works, slow as
// it may be, where it fails; half of them, where it is slow, since profiles are wrong more often than GPUs. The one
// that works may be elsewhere: in another sub-cluster that serves the model.
func (r *ranker) isOutlier(h *health, elsewhere bool) bool {
	again := h.holds > 0 // one more batch tells
	switch {
	case h.failed >= failedMost || again && h.failed > 0:
		return elsewhere || r.working.Load() > 0
	case h.slow >= slowMost || again && h.slow > 0:
		return 2*r.sound >= r.s.GPUs()
	}
	return false
}

// hold keeps a GPU from getting batches for a while.
func (r *ranker) hold(t *turn, g *gpu) {
	h := &g.health
	if h.holds == 0 {
		r.tried++
		g.sick.Store(true)
		t.sickened = append(t.sickened, g)
	}
	h.until = t.now.Add(min(holdMost, holdFirst<<min(h.holds, holdShifts)))
	h.holds++
	r.s.Hold(t.now, g.id, h.until)
}

// holdTrials lets a GPU that was held back run one batch until it has been judged by that: what is behind a batch
// that proves slow would be lost, too. mu is held.
func (r *ranker) holdTrials(e *Engine, now sched.Time, grants []sched.Grant) {
	for i := range grants {
		if g := e.gpu(grants[i].GPU); g != nil && g.health.holds > 0 {
			r.s.Hold(now, g.id, now.Add(trialMost))
		}
	}
}

// dropHealth forgets a GPU that leaves. mu is held.
func (r *ranker) dropHealth(h *health) {
	r.countState(h, false, false)
	if h.gone = true; h.holds > 0 {
		r.tried--
	}
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
