package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// cluster is a sub-cluster: GPUs of one pool that offer the same models, so that each GPU may get any batch.
// plan.SubClusterFor decides the sub-cluster of a GPU; it changes when plans make GPUs offer models or stop.
type cluster struct {
	pool   plan.Pool
	label  string // unique in metrics
	number uint32
	models []uint32 // ids of the models that its GPUs have loaded, ascending
	gpus   []*gpu
	unused bool         // its GPUs serve no model, and that was logged
	scaler *plan.Scaler // nil: not started
	advice plan.Advice  // of the scaler; zero: none yet
}

// placeGPUs puts each GPU of a backend into the sub-cluster for its loaded models and updates services. Services
// learn of a new home before the old one loses its GPUs, so that a request always finds one.
func (g *registry) placeGPUs(b *Backend) {
	b.publishProfiles()

	var left, joined []*gpu
	var loaded []uint32
	var table *[]uint32 // of the GPUs that have loaded these
	var c *cluster      // for the GPU before,
	was := uint32(0)    // which was in this one until now; 0: in none
	for i := range b.hello.GPUs {
		old, alike := b.gpus[i], i > 0 && b.areAlike(i-1, i)

		// GPUs of one host usually have the same models and share one table.
		if !alike {
			if ids := g.loadedOn(b, i); table == nil || !slices.Equal(ids, loaded) {
				loaded, table = ids, g.numbersOf(b, i)
			}
		}

		// A GPU goes where the one before went if they are alike and were in the same place. Comparing it with all
		// sub-clusters would come to the same, unless that GPU has left one of them.
		now := subOf(old)
		if away := c != nil && was != 0 && was != c.number; !alike || c == nil || away || now != was {
			c = g.clusterFor(b, old, i, loaded)
		}
		was = now

		// A GPU that stays in its sub-cluster only gets the new numbers of its models.
		if c == nil || old != nil && old.sub == c.number {
			if old != nil {
				old.models.Store(table)
			}
			continue
		}

		u := g.newGPU(b, i, c, old)
		u.models.Store(table)
		if old != nil {
			left = append(left, old)
			g.clusters[old.sub].remove(old)
		}
		b.gpus[i] = u
		c.gpus = append(c.gpus, u)
		joined = append(joined, u)
	}

	g.countGPUs(joined) // before frontends hear of models, as they send requests at once

	// Now that services know the new sub-clusters, the old ones can lose their GPUs.
	g.settleHomes()
	for _, u := range left {
		g.retireGPU(u)
	}
	g.addGPUs(joined)
	g.countGPUs(left)
	g.adviseUnused()
	g.moveSpare(b)
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

// subOf returns a GPU's sub-cluster; 0 for a new GPU.
func subOf(u *gpu) uint32 {
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

// clusterFor returns the sub-cluster that core/plan chooses for a GPU with these models: its present one, another, or
// a new one; nil if no number is left for a new one.
func (g *registry) clusterFor(b *Backend, old *gpu, index int, loaded []uint32) *cluster {
	own := plan.Nowhere
	if old != nil {
		own = int(old.sub) - 1
	}

	// core/plan counts from 0; here number 0 means no sub-cluster.
	here := b.pooled(index, loaded)
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

// pooled describes a GPU of the backend to core/plan as one that offers these models.
func (b *Backend) pooled(gpu int, models []uint32) plan.PooledGPU {
	d := b.gpuDetail(gpu)
	x := plan.PooledGPU{Pool: plan.Pool{Name: b.hello.SubCluster, Kind: d.Kind, Memory: d.Memory}, Models: models}
	if d.Kind == "" {
		x.Profiles = b.profilesOf(models)
	}
	return x
}

// newCluster makes a sub-cluster and its ranker; nil if no number is left.
func (g *registry) newCluster() *cluster {
	if len(g.clusters) == sched.SubClusterLimit {
		return nil
	}

	c := &cluster{number: uint32(len(g.clusters))}
	g.clusters = append(g.clusters, c)

	// Sub-clusters are assigned to the loops round robin.
	l := g.e.loops[int(c.number)%len(g.e.loops)]
	r := &ranker{number: c.number, loop: l, s: sched.NewRanker(c.number, sched.Options{Ctrl: g.ctrl, Data: g.data, Prompt: g.e.o.Prompt})}

	// This must precede its listing: a loop that reads time 0 would poll it at once.
	r.wake.Store(int64(sched.Never))

	// Readers take the list without a lock, so it is replaced and never changed.
	all := append(slices.Clone(*g.e.rankers.Load()), r)
	g.e.rankers.Store(&all)
	mine := append(slices.Clone(*l.rankers.Load()), r)
	l.rankers.Store(&mine)
	return c
}

// freeLabel returns a label that no other sub-cluster with GPUs has: the operator's name, or the kind of its GPUs.
func (g *registry) freeLabel(c *cluster) string {
	name := cmp.Or(c.pool.Name, c.pool.Kind, "gpus")
	label := name

	// Labels of sub-clusters without GPUs are free, as these appear in no metric.
	taken := func() bool {
		return slices.ContainsFunc(g.clusters, func(x *cluster) bool { return x != c && len(x.gpus) > 0 && x.label == label })
	}
	for n := 2; taken(); n++ {
		label = fmt.Sprintf("%s-%d", name, n)
	}
	return label
}

// table returns the profile of a model in a sub-cluster, measured by its backends other than except; nil if none has
// it loaded.
func (c *cluster) table(id uint32, except *Backend) []time.Duration {
	if _, has := slices.BinarySearch(c.models, id); !has {
		return nil
	}
	var measured []plan.MeasuredProfile
	var last *Backend
	for _, u := range c.gpus {
		if u.b == except {
			continue
		}

		// A backend's GPUs are adjacent and share its profile.
		if u.b != last {
			last = u.b
			measured = append(measured, plan.MeasuredProfile{Table: u.profile(id)})
		}
		measured[len(measured)-1].GPUs++
	}
	return plan.KindProfile(c.pool.Kind, measured)
}

// publishProfiles gives partitions a backend's measured profiles.
func (b *Backend) publishProfiles() {
	all := make([][]time.Duration, len(b.hello.Models))
	for n := range all {
		all[n] = b.hello.Models[n].Profile
	}
	b.measured.Store(&all)
}

func (c *cluster) remove(u *gpu) {
	c.gpus = slices.DeleteFunc(c.gpus, func(x *gpu) bool { return x == u })
}

// newGPU returns a GPU's new state in a sub-cluster. A GPU that was in another one keeps its number and counters but
// gets a new epoch, so batches granted there do not go to it.
func (g *registry) newGPU(b *Backend, i int, c *cluster, old *gpu) *gpu {
	g.epoch++
	u := &gpu{index: uint32(i), epoch: g.epoch, sub: c.number, b: b, name: gpuName(&b.hello, i)}
	if old != nil {
		u.id, u.gpuCounts = old.id, old.gpuCounts

		// Its health is judged anew against its new peers.
		u.sick.Store(false)
		return u
	}

	// Numbers are reused, so that tables by GPU stay as short as the largest number of GPUs at a time.
	u.gpuCounts = &gpuCounts{}
	if n := len(g.gpuFree); n > 0 {
		u.id, g.gpuFree = g.gpuFree[n-1], g.gpuFree[:n-1]
	} else {
		u.id = g.gpuNext
		g.gpuNext++
	}
	return u
}

// countGPUs tells every partition the number of GPUs in the sub-clusters of these GPUs.
func (g *registry) countGPUs(gpus []*gpu) {
	var told []uint32
	for _, u := range gpus {
		if slices.Contains(told, u.sub) {
			continue
		}

		// A sub-cluster is announced once, with all of its GPUs counted.
		told = append(told, u.sub)
		g.e.ranker(u.sub).groups.Store(g.clusters[u.sub].groups())
		for _, p := range g.e.parts {
			t := g.e.beginTurn(&g.spare)
			p.enter(t)
			p.s.SetGPUs(t.now, u.sub, len(g.clusters[u.sub].gpus))
			p.collectOutputs(g.e, t)
			p.mu.Unlock()
			g.e.finishTurn(t)
		}
	}
}

// retireGPU removes a GPU from its ranker.
func (g *registry) retireGPU(u *gpu) {
	r := g.e.ranker(u.sub)
	r.mu.Lock()
	r.s.RemoveGPU(g.e.clock.Now(), u.id)
	r.dropHealth(&u.health)
	r.mu.Unlock()
}
