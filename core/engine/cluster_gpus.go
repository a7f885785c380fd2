package engine

import (
	"slices"
	"time"
)

// placeGPUs puts each GPU of a backend into the sub-cluster for its loaded models and updates services. Services
// learn of a new home before the old one loses its GPUs, so that a request always finds one.
func (g *registry) placeGPUs(b *Backend) {
	b.publishProfiles()

	var left, joined []*gpu
	chosen := clusterChoice{g: g, b: b}
	for i := range b.hello.GPUs {
		old := b.gpus[i]
		chosen.chooseFor(i)

		// A GPU that stays in its sub-cluster only gets the new numbers of its models.
		c := chosen.cluster
		if c == nil || old != nil && old.sub == c.number {
			if old != nil {
				old.models.Store(chosen.table)
			}
			continue
		}

		u := g.newGPU(b, i, c, old)
		u.models.Store(chosen.table)
		if old != nil {
			left = append(left, old)
			g.clusters[old.sub].removeGPU(old)
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

// publishProfiles gives partitions a backend's measured profiles.
func (b *Backend) publishProfiles() {
	all := make([][]time.Duration, len(b.hello.Models))
	for n := range all {
		all[n] = b.hello.Models[n].Profile
	}
	b.measured.Store(&all)
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
