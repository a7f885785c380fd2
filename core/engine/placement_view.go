package engine

import (
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
)

// placementView is the input of plans: the models and GPUs of all backends by number, and what is loaded where.
type placementView struct {
	plan.Snapshot
	keys  []string // of the models, by number
	infos []model.Info
	gpus  []gpuKey
	index map[string]int32 // model numbers by key
}

// viewPlacement describes the cluster to core/plan. It leaves out backends that take no placements, with their GPUs.
func (g *registry) viewPlacement() *placementView {
	v := &placementView{index: map[string]int32{}}
	pools := map[plan.Pool]int32{}
	var backends []*Backend
	for _, b := range g.backends {
		if b.hello.Version < commandVersion {
			continue
		}
		backends = append(backends, b)
		for i, u := range b.gpus {
			// Number the pools in the order in which they appear.
			key := b.describePooled(i, nil).Pool
			if _, known := pools[key]; !known {
				pools[key] = int32(len(pools))
			}

			part := int32(plan.Nowhere)
			if u != nil {
				part = int32(u.sub)
			}
			v.GPUs = append(v.GPUs, plan.PlacedGPU{Pool: pools[key], Part: part, Host: int32(len(backends) - 1), Memory: int64(min(key.Memory, 1<<44))})
			v.gpus = append(v.gpus, gpuKey{b.name, i})
		}
		v.addModels(b)
	}

	v.joinTrunks()

	// All models and GPUs are numbered now, so the tables have their size.
	for range v.keys {
		v.Present, v.Loadable = append(v.Present, make([]plan.Residence, len(v.GPUs))), append(v.Loadable, make([]bool, len(v.GPUs)))
	}
	g.fillView(v, backends, len(pools))
	g.addRates(v)
	return v
}

// addModels records a backend's models, with the largest footprint and load time that any backend measured.
func (v *placementView) addModels(b *Backend) {
	for n := range b.hello.Models {
		m := &b.hello.Models[n].Info
		at, known := v.index[modelKey(m)]
		if !known {
			at = int32(len(v.keys))
			v.index[modelKey(m)] = at
			v.keys, v.infos, v.Models = append(v.keys, modelKey(m)), append(v.infos, *m), append(v.Models, plan.PlacedModel{})
		}

		// Sizes come from outside: bound them, so that sums cannot overflow.
		x := &v.Models[at]
		x.Static, x.Dynamic = max(x.Static, int64(min(m.Static, 1<<44))), max(x.Dynamic, int64(min(m.Dynamic, 1<<44)))
		x.Load = max(x.Load, b.hello.Models[n].Load)

		// A backend whose executor shares nothing reports 0: there the exit stands for itself.
		if m.ExitOf != "" && m.Shared > 0 {
			x.Shared = max(x.Shared, int64(min(m.Shared, 1<<44)))
		}
	}
}

// joinTrunks groups models that share parameters: a model and those of its exits of the same version.
func (v *placementView) joinTrunks() {
	numbers := map[string]int32{}
	for m, info := range v.infos {
		if v.Models[m].Shared == 0 {
			continue
		}
		key := modelKey(&model.Info{Name: info.ExitOf, Version: info.Version})
		if numbers[key] == 0 {
			numbers[key] = int32(len(numbers) + 1)
		}
		v.Models[m].Trunk = numbers[key]

		// The exits begin with all of the parent.
		if at, known := v.index[key]; known {
			p := &v.Models[at]
			p.Trunk, p.Shared = numbers[key], p.Static
		}
		v.Models[m].Shared = min(v.Models[m].Shared, v.Models[m].Static)
	}
}

// fillView records what is loaded where, what could be, and how fast models are in each pool.
func (g *registry) fillView(v *placementView, backends []*Backend, pools int) {
	at := 0
	for _, b := range backends {
		for n := range b.hello.Models {
			entry := &b.hello.Models[n]
			m := v.index[modelKey(&entry.Info)]
			for i := range b.hello.GPUs {
				v.Present[m][at+i], v.Loadable[m][at+i] = b.residence(resident{n, i}), true
			}

			// One profile stands for a pool: its GPUs are of one kind.
			x, pool := &v.Models[m], v.GPUs[at].Pool
			if x.Profiles == nil {
				x.Profiles = make([]*profile.Profile, pools)
			}
			if x.Profiles[pool] == nil && len(entry.Profile) > 0 {
				x.Profiles[pool], _ = g.profile(entry.Profile) // an invalid profile leaves the demand unknown
			}
		}
		at += len(b.hello.GPUs)
	}

	// A load that nobody has timed gets a default.
	for m := range v.Models {
		v.Models[m].Load = plan.LoadTime(v.Models[m].Load)
	}
}

// longestLoads returns how long the loads of the steps take on the backend where they take longest. A backend loads one
// model at a time, and backends load beside each other.
func (v *placementView) longestLoads(steps []plan.Step) (most time.Duration) {
	byHost := map[int32]time.Duration{}
	for _, s := range steps {
		if s.Kind == plan.StepLoad {
			host := v.GPUs[s.GPU].Host
			byHost[host] += v.Models[s.Model].Load
			most = max(most, byHost[host])
		}
	}
	return most
}

// addRates records the request rate of each model, under its own name and as its family's answer.
func (g *registry) addRates(v *placementView) {
	now := g.e.clock.Now()
	for _, m := range g.models {
		if m.info.Name == "" {
			continue
		}

		// Read everything of a model under one lock.
		id := sched.ModelID(m.info.ID)
		p := g.e.partition(id)
		p.mu.Lock()
		rate := p.s.RateOf(id)
		var answered Answered
		if m.class != nil {
			answered = g.answersOf(p, m, now, lately)
		}
		p.mu.UnlockBehind()

		if m.class == nil {
			if at, known := v.index[modelKey(&m.info)]; known {
				v.Models[at].Rate, v.Models[at].SLO = v.Models[at].Rate+rate, time.Duration(m.slo)
			}
			continue
		}

		// A family's load counts for the variants that have answered it lately.
		for _, a := range answered.Variants {
			if at, known := v.index[modelKey(&model.Info{Name: a.Model, Version: a.Version})]; known {
				v.Models[at].Rate += rate * a.Share
			}
		}
	}
}
