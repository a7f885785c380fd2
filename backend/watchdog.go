package backend

import (
	"time"

	"downbeat.dev/core/model"
)

const (
	hangCheck = 100 * time.Millisecond // interval of checks for batches that exceed limits.Backend
	hungPause = 2 * time.Second        // how long the scheduler should send a hanging GPU nothing
	lostPause = time.Hour              // the same for a lost GPU
)

// isSick reports whether batches sent to the GPU would fail.
func (g *gpu) isSick() bool { return g.lost.Load() || g.hung.Load() || g.stuck.Load() > 0 }

// watchdog answers the orders of hanging GPUs until stop is closed. A backend has one goroutine that runs it.
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
			g.rescueOrders(repliers[i])
		}
	}
}

// rescueOrders answers the orders of a hanging GPU. Orders that the executor has may have run: BackendLost. Orders that
// are still due have not run.
func (g *gpu) rescueOrders(r *replier) {
	for o := g.takeOverdue(); o != nil; o = g.takeOverdue() {
		g.backend.log.Error("GPU hangs: others get its requests until it answers again", "gpu", g.name, "model", o.model.Name,
			"rows", o.rows, "profile", o.model.Profile.Exec(o.rows))
		o.failRest(model.BackendLost)
		r.replyTo(o)
	}

	// New orders are returned at once until the GPU answers.
	for g.hung.Load() {
		g.mu.Lock()
		if len(g.due) == 0 {
			g.mu.Unlock()
			return
		}
		o := g.takeFirst()
		g.mu.Unlock()

		// Stop reading its inputs: nobody here will use them.
		g.cancelFetch(o)
		o.failRest(model.NoBackend)
		r.replyTo(o)
	}
}

// takeOverdue returns an order that a hanging GPU's executor has, and that the caller must answer; nil if there is none.
func (g *gpu) takeOverdue() *order {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.flying) == 0 || g.backend.now() <= g.dueBy {
		return nil
	}

	// The oldest order that nobody has answered.
	for _, o := range g.flying {
		if !o.answered {
			o.answered = true
			o.claims.Add(1) // the goroutine that waits for the executor still holds the slot
			g.hung.Store(true)
			putToken(g.freed)
			return o
		}
	}
	return nil
}
