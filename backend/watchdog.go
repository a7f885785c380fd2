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

// watch begins an execution.
func (g *gpu) watch(o *order) {
	g.mu.Lock()
	g.running = o
	g.dueBy = o.began + max(hangMin, hangFactor*o.model.Profile.Exec(o.rows))
	g.mu.Unlock()
}

// unwatch ends an execution and reports whether the watchdog took the order. If so the caller still
// holds one claim on it.
func (g *gpu) unwatch() (taken bool) {
	g.mu.Lock()
	taken = g.running == nil
	g.running = nil
	g.mu.Unlock()
	if taken {
		g.hung.Store(false)
		if !g.lost.Load() {
			g.backend.log.Warn("GPU answers again", "gpu", g.name)
		}
	}
	return taken
}

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

// rescue answers for a GPU that hangs.
func (g *gpu) rescue(r *replier) {
	g.mu.Lock()
	o := g.running
	if o != nil && g.backend.now() > g.dueBy {
		g.running = nil
		o.claims.Add(1) // the goroutine in Execute still holds the slot
		g.hung.Store(true)
	} else {
		o = nil
	}
	g.mu.Unlock()
	if o != nil {
		g.backend.log.Error("GPU hangs: others get its requests until it answers again", "gpu", g.name, "model", o.model.Name,
			"rows", o.rows, "profile", o.model.Profile.Exec(o.rows))
		o.fail(sched.BackendLost)
		r.reply(o)
	}
	for g.hung.Load() {
		select {
		case o := <-g.queue:
			if o == nil {
				return // closed
			}
			g.cancelFetch(o)
			o.fail(sched.NoBackend)
			r.reply(o)
		default:
			return
		}
	}
}
