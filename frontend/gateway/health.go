package gateway

import (
	"slices"
	"sync"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// healthEvery is how long a health result is cached: anyone may ask, and each check visits all models.
const healthEvery = 250 * time.Millisecond

// healthState is the result of the last check.
type healthState struct {
	mu       sync.Mutex
	at       time.Time
	allReady bool // the scheduler is connected, and every announced model has a backend
	oneReady bool // the scheduler is connected, and some model has a backend
	strict   bool // allReady also requires that no backend fails to serve one of its models
}

// lookAt returns the health state, at most healthEvery old.
func (h *healthState) lookAt(c *frontend.Client, now time.Time) (allReady, oneReady bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.at.IsZero() || now.Sub(h.at) >= healthEvery {
		h.at = now

		// A model that an operator unloaded has not failed.
		failed := slices.ContainsFunc(c.Models(), func(m *frontend.Model) bool { return !m.Ready && m.Reason != "" && m.Reason != model.Unloaded })
		h.allReady = c.Ready() && !(h.strict && failed)
		h.oneReady = c.Connected() && slices.ContainsFunc(c.Models(), func(m *frontend.Model) bool { return m.Ready })
	}
	return h.allReady, h.oneReady
}

// isReady reports whether inferences can be answered: the scheduler is connected and every model has a backend, as
// the protocol defines it, until the gateway begins to close.
func (g *Gateway) isReady() bool {
	all, _ := g.health.lookAt(g.client, time.Now())
	return all && !g.leaving.Load()
}

// isServing reports whether any inference can be answered, which is what a balancer should check.
func (g *Gateway) isServing() bool {
	_, one := g.health.lookAt(g.client, time.Now())
	return one && !g.leaving.Load()
}
