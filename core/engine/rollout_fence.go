package engine

import (
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// sendFences asks every backend to unload a model from a GPU that does not have it. A previous scheduler may have
// ordered loads that nobody knows of any more. A backend carries out placements one after another, so its report of
// the fence means that those loads have ended. A backend with all of its models on all GPUs loads none.
func (g *registry) sendFences() {
	r := &g.rollout
	r.fences = map[uint64]*Backend{}
	for _, b := range g.backends {
		at, ok := b.absentModel()
		if !ok || b.hello.Version < commandVersion {
			continue
		}
		r.orders++
		number := wire.NumberOrder(r.plan.Number, r.orders)
		r.fences[number] = b
		b.port.Place([]wire.Placement{{Number: number, Op: wire.Unload, GPU: uint32(at.gpu), Model: uint32(at.model)}})
	}
}

// absentModel finds a model that a GPU of the backend does not have.
func (b *Backend) absentModel() (at resident, ok bool) {
	for n := range b.hello.Models {
		for i := range b.hello.GPUs {
			if !isLoaded(&b.hello.Models[n], i) {
				return resident{n, i}, true
			}
		}
	}
	return at, false
}

// awaitFences reports whether a connected backend has yet to report its fence.
func (g *registry) awaitFences(now sched.Time) bool {
	r := &g.rollout
	for number, b := range r.fences {
		if b.dead.Load() || plan.StepOverdue(time.Duration(now.Sub(r.began))) {
			delete(r.fences, number)
		}
	}
	return len(r.fences) > 0
}
