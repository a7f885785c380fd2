package backend

import (
	"time"

	"downbeat.dev/core/sched"
)

const (
	hangFactor = 20                     // a batch that takes so many times its profile
	hangMin    = time.Second            // and at least this makes its GPU a hanging one
	hangCheck  = 100 * time.Millisecond // how often to look
	hungPause  = 2 * time.Second        // how long the scheduler is told to leave a hanging GPU alone
	lostPause  = time.Hour              // and a lost one
)

// sick reports whether batches sent to the GPU would fail.
func (g *gpu) sick() bool { return g.lost.Load() || g.hung.Load() }

// watchdog gives back what a hanging GPU holds, until stop is closed. One goroutine per backend.
func (b *Backend) watchdog() {
	defer b.wait.Done()
	repliers := make([]*replier, len(b.gpus))
	for i, g := range b.gpus {
		repliers[i] = newReplier(g)
	}
	t := time.NewTicker(hangCheck)
	defer t.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-t.C:
		}
		for i, g := range b.gpus {
			g.rescue(repliers[i])
		}
	}
}

// rescue answers for a GPU that hangs: what the executor has may have run (BackendLost), what is due has not.
func (g *gpu) rescue(r *replier) {
	for o := g.overdue(); o != nil; o = g.overdue() {
		g.backend.log.Error("GPU hangs: others get its requests until it answers again", "gpu", g.name, "model", o.model.Name,
			"rows", o.rows, "profile", o.model.Profile.Exec(o.rows))
		o.fail(sched.BackendLost)
		r.reply(o)
	}
	for g.hung.Load() {
		g.mu.Lock()
		if len(g.due) == 0 {
			g.mu.Unlock()
			return
		}
		o := g.first()
		g.mu.Unlock()
		g.cancelFetch(o)
		o.fail(sched.NoBackend)
		r.reply(o)
	}
}

// overdue takes over the answer to an order that the executor of a hanging GPU has; nil if there is none.
func (g *gpu) overdue() *order {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.flying) == 0 || g.backend.now() <= g.dueBy {
		return nil
	}
	for _, o := range g.flying {
		if !o.answered {
			o.answered = true
			o.claims.Add(1) // the goroutine that waits for the executor still holds the slot
			g.hung.Store(true)
			token(g.freed)
			return o
		}
	}
	return nil
}
