package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// locateStep finds a step's backend, model and GPU among the connected backends.
func (g *registry) locateStep(r *rollout, s plan.Step) (*Backend, resident, bool) {
	key := r.gpus[s.GPU]
	b := g.backend(key.backend)
	if b == nil || key.index >= len(b.gpus) {
		return nil, resident{}, false
	}
	n := b.numberOf(r.models[s.Model])
	return b, resident{n, key.index}, n >= 0
}

// numberOf returns a model's number in the backend's hello; -1 if it does not know the model.
func (b *Backend) numberOf(key string) int {
	return slices.IndexFunc(b.hello.Models, func(m wire.BackendModel) bool { return modelKey(&m.Info) == key })
}

// awaitGPUs reports whether the plan waits for GPUs whose backends are away and may soon return.
func (g *registry) awaitGPUs(now sched.Time) (waits bool) {
	r := &g.rollout

	for i, key := range r.gpus {
		switch {
		case g.backend(key.backend) != nil:
			r.away[i] = 0
		case r.plan.Lost(int32(i)):
		case r.away[i] == 0:
			r.away[i], waits = now, true
		default:
			waits = waits || !r.isGone(i, now)
		}
	}

	return waits
}

// isGone reports whether the plan leaves out a GPU, because its backend has been away too long.
func (r *rollout) isGone(gpu int, now sched.Time) bool {
	return r.away[gpu] != 0 && plan.IsGone(time.Duration(now.Sub(r.away[gpu])))
}

// presentOf returns the load state of the plan's models on its GPUs; on a GPU that is away, the last known state. It
// removes GPUs that have left from the plan.
func (g *registry) presentOf(r *rollout) plan.Placement {
	present := make(plan.Placement, len(r.models))
	for m := range present {
		present[m] = make([]plan.Residence, len(r.gpus))
	}

	index := make(map[string]int32, len(r.models))
	for m, key := range r.models {
		index[key] = int32(m)
	}

	var left []int32
	for i, key := range r.gpus {
		b := g.backend(key.backend)
		if b == nil && !r.isGone(i, g.e.clock.Now()) {
			for m := range present {
				present[m][i] = r.seen[m][i]
			}
			continue
		}

		if b == nil || key.index >= len(b.gpus) {
			left = append(left, int32(i))
			continue
		}

		for n := range b.hello.Models {
			if m, planned := index[modelKey(&b.hello.Models[n].Info)]; planned {
				present[m][i] = b.residence(resident{n, key.index})
			}
		}
	}

	// An ordered load has begun to take memory.
	for _, w := range r.work {
		if at := &present[w.step.Model][w.step.GPU]; w.order != 0 && w.step.Kind == plan.StepLoad && *at == plan.Absent {
			*at = plan.Loaded
		}
	}

	// A plan goes on without GPUs that have left; the log says so once.
	for _, i := range left {
		if !r.plan.Lost(i) {
			g.e.log.Warn("GPU is left out of the plan: its backend has left", "plan", r.plan.Number, "backend", r.gpus[i].backend, "gpu", r.gpus[i].index)
			r.plan.Lose(present, i)
		}
	}

	r.seen = present
	return present
}

// residence returns a model's load state on a GPU.
func (b *Backend) residence(at resident) plan.Residence {
	switch {
	case b.leaving[at]:
		return plan.Loaded
	case !isLoaded(&b.hello.Models[at.model], at.gpu):
		return plan.Absent
	case b.withheld[at]:
		return plan.Warm
	}
	return plan.Offered
}

// inFlight reports whether batches that were sent by some time are in flight on a GPU. Models withdrawn before that
// time have no batches sent after it.
func (g *registry) inFlight(b *Backend, gpu int, by sched.Time) bool {
	for _, p := range g.e.parts {
		p.mu.Lock()
		found := slices.ContainsFunc(p.batches, func(f flight) bool {
			return f.gpu != nil && f.gpu.b == b && int(f.gpu.index) == gpu && f.sent <= by
		})
		p.mu.Unlock()
		if found {
			return true
		}
	}
	return false
}

// keyName formats a model's key for people.
func keyName(key string) string {
	for i := range key {
		if key[i] == 0 {
			return key[:i] + ":" + key[i+1:]
		}
	}
	return key
}
