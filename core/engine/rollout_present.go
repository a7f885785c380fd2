package engine

import (
	"slices"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// locate finds the place of a step in the backends that are here.
func (g *registry) locate(r *rollout, s plan.Step) (*Backend, resident, bool) {
	key := r.gpus[s.GPU]
	b := g.backend(key.backend)
	if b == nil || key.index >= len(b.gpus) {
		return nil, resident{}, false
	}
	n := b.numberOf(r.models[s.Model])
	return b, resident{n, key.index}, n >= 0
}

// numberOf returns the number of a model in the backend's hello, -1 if it does not know it.
func (b *Backend) numberOf(key string) int {
	return slices.IndexFunc(b.hello.Models, func(m wire.BackendModel) bool { return modelKey(&m.Info) == key })
}

// awaitGPUs says whether the plan waits for GPUs whose backends are away, and may be back soon.
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

// isGone says whether a GPU whose backend is not here is left out of the plan.
func (r *rollout) isGone(gpu int, now sched.Time) bool {
	return r.away[gpu] != 0 && plan.IsGone(time.Duration(now.Sub(r.away[gpu])))
}

// presentOf returns how far the plan's models have come on its GPUs; on one that is away, how far they had come. GPUs that
// have left since are taken out of it.
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

	// A load that was ordered has begun to take memory.
	for _, w := range r.work {
		if at := &present[w.step.Model][w.step.GPU]; w.order != 0 && w.step.Kind == plan.StepLoad && *at == plan.Absent {
			*at = plan.Loaded
		}
	}
	for _, i := range left {
		if !r.plan.Lost(i) {
			g.e.log.Warn("GPU is left out of the plan: its backend has left", "plan", r.plan.Number, "backend", r.gpus[i].backend, "gpu", r.gpus[i].index)
			r.plan.Lose(present, i)
		}
	}

	r.seen = present
	return present
}

// residence is how far a model has come on a GPU.
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

// inFlight says whether batches are under way on a GPU that were sent by some time: of what was withdrawn before it, there
// are none after it.
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

// keyName is how a model is named to people.
func keyName(key string) string {
	for i := range key {
		if key[i] == 0 {
			return key[:i] + ":" + key[i+1:]
		}
	}
	return key
}
