package engine

import (
	"slices"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// clusterChoice chooses the sub-clusters of a backend's GPUs, one after the other. GPUs of one host usually have the same
// models, so it keeps what it found for the GPU before.
type clusterChoice struct {
	g       *registry
	b       *Backend
	loaded  []uint32  // ids of the models that the GPU has loaded
	table   *[]uint32 // the numbers of these models, shared by the GPUs that have loaded them
	cluster *cluster  // nil: no GPU has been placed, or no number was left
	was     uint32    // the sub-cluster in which the GPU was until now; 0: none
}

// chooseFor sets the fields for a GPU of the backend.
func (x *clusterChoice) chooseFor(gpu int) {
	old, isAlike := x.b.gpus[gpu], gpu > 0 && x.b.areAlike(gpu-1, gpu)
	if !isAlike {
		if ids := x.g.loadedOn(x.b, gpu); x.table == nil || !slices.Equal(ids, x.loaded) {
			x.loaded, x.table = ids, x.g.numbersOf(x.b, gpu)
		}
	}

	// A GPU goes where the one before went if they are alike and were in the same place. Comparing it with all
	// sub-clusters would come to the same, unless that GPU has left one of them.
	now := subClusterOf(old)
	hasLeft := x.cluster != nil && x.was != 0 && x.was != x.cluster.number
	if !isAlike || x.cluster == nil || hasLeft || now != x.was {
		x.cluster = x.g.clusterFor(x.b, old, gpu, x.loaded)
	}
	x.was = now
}

// clusterFor returns the sub-cluster that core/plan chooses for a GPU with these models: its present one, another, or
// a new one; nil if no number is left for a new one.
func (g *registry) clusterFor(b *Backend, old *gpu, index int, loaded []uint32) *cluster {
	own := plan.Nowhere
	if old != nil {
		own = int(old.sub) - 1
	}

	// core/plan counts from 0; here number 0 means no sub-cluster.
	here := b.describePooled(index, loaded)
	var empty *cluster
	if at := plan.SubClusterFor(own, &here, g.clusterStates(b, loaded)); at != plan.Nowhere {
		if c := g.clusters[at+1]; at == own || len(c.gpus) > 0 {
			return c
		}
		empty = g.clusters[at+1]
	} else if empty = g.newCluster(); empty == nil {
		g.e.log.Error("GPU not placed: there are too many sub-clusters", "backend", b.name, "limit", sched.SubClusterLimit)
		return nil
	}

	// A sub-cluster without GPUs is reused as a new one; only its number and ranker stay.
	empty.stopScaling()
	empty.pool, empty.models = here.Pool, loaded
	empty.label = g.freeLabel(empty)
	g.e.ranker(empty.number).models.Store(&loaded)
	return empty
}

// clusterStates describes all sub-clusters to core/plan, for a GPU of a backend with these models.
func (g *registry) clusterStates(b *Backend, loaded []uint32) []plan.SubClusterState {
	all := make([]plan.SubClusterState, len(g.clusters)-1)
	for i, c := range g.clusters[1:] {
		all[i] = plan.SubClusterState{PooledGPU: plan.PooledGPU{Pool: c.pool, Models: c.models}, GPUs: len(c.gpus)}
		if c.pool.Kind != "" || len(c.gpus) == 0 || !slices.Equal(c.models, loaded) {
			continue // an empty sub-cluster needs no profiles
		}

		// All GPUs of a backend share its profile, so only another backend's can differ.
		other := max(0, slices.IndexFunc(c.gpus, func(u *gpu) bool { return u.b != b }))
		for _, id := range c.models {
			all[i].Profiles = append(all[i].Profiles, c.gpus[other].profile(id))
		}
	}
	return all
}

// describePooled describes a GPU of the backend to core/plan as one that offers these models.
func (b *Backend) describePooled(gpu int, models []uint32) plan.PooledGPU {
	d := b.gpuDetail(gpu)
	x := plan.PooledGPU{Pool: plan.Pool{Name: b.hello.SubCluster, Kind: d.Kind, Memory: d.Memory}, Models: models}
	if d.Kind == "" {
		x.Profiles = b.profilesOf(models)
	}
	return x
}

// loadedOn returns the ids of the models that a backend's GPU offers, ascending: the loaded ones that no plan
// withholds.
func (g *registry) loadedOn(b *Backend, gpu int) (ids []uint32) {
	for n, id := range b.ids {
		if id != noModel && isLoaded(&b.hello.Models[n], gpu) && !b.withheld[resident{n, gpu}] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// numbersOf returns, by model id, the model's number in the hello + 1; 0 if the GPU has not loaded it.
func (g *registry) numbersOf(b *Backend, gpu int) *[]uint32 {
	table := make([]uint32, len(g.models))
	for n, id := range b.ids {
		if id != noModel && isLoaded(&b.hello.Models[n], gpu) {
			table[id] = uint32(n) + 1
		}
	}
	return &table
}

// isLoaded reports whether a GPU has a model of its backend's hello loaded.
func isLoaded(m *wire.BackendModel, gpu int) bool { return len(m.Loaded) == 0 || m.Loaded[gpu] }

// loadedSomewhere reports whether some GPU has a model of its backend's hello loaded.
func loadedSomewhere(m *wire.BackendModel) bool {
	return len(m.Loaded) == 0 || slices.Contains(m.Loaded, true)
}

// subClusterOf returns a GPU's sub-cluster; 0 for a new GPU.
func subClusterOf(u *gpu) uint32 {
	if u == nil {
		return 0
	}
	return u.sub
}

// areAlike reports whether two GPUs of a backend are of one kind and have and offer the same models.
func (b *Backend) areAlike(i, k int) bool {
	if b.gpuDetail(i) != b.gpuDetail(k) {
		return false
	}
	for n := range b.hello.Models {
		if m := &b.hello.Models[n]; isLoaded(m, i) != isLoaded(m, k) || b.withheld[resident{n, i}] != b.withheld[resident{n, k}] {
			return false
		}
	}
	return true
}
