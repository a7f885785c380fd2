package engine

import (
	"slices"
	"time"
)

// moveClusters updates the models of sub-clusters whose GPUs have all changed alike; they keep their number and their
// GPUs. placeGPUs moves GPUs that change alone.
func (g *registry) moveClusters(touched []*Backend) {
	changed := false
	for _, c := range g.clusters[1:] {
		if len(c.gpus) == 0 || !slices.ContainsFunc(c.gpus, func(u *gpu) bool { return slices.Contains(touched, u.b) }) {
			continue
		}

		// If all GPUs now hold the same models, the first one's stand for all.
		loaded := g.loadedOn(c.gpus[0].b, int(c.gpus[0].index))
		if slices.Equal(loaded, c.models) || !g.haveAllLoaded(c, loaded) {
			continue
		}

		for _, u := range c.gpus {
			u.models.Store(g.numbersOf(u.b, int(u.index)))
		}
		c.models, changed = loaded, true
		g.e.ranker(c.number).models.Store(&loaded)
	}

	if changed {
		g.settleHomes()
	}
}

// haveAllLoaded reports whether all GPUs of a sub-cluster have these models and still form one sub-cluster, while no
// other sub-cluster of the pool has the same models.
func (g *registry) haveAllLoaded(c *cluster, loaded []uint32) bool {
	for _, x := range g.clusters[1:] {
		if x != c && len(x.gpus) > 0 && x.pool == c.pool && slices.Equal(x.models, loaded) {
			return false
		}
	}

	first := c.gpus[0].b.describePooled(int(c.gpus[0].index), loaded)
	return !slices.ContainsFunc(c.gpus[1:], func(u *gpu) bool {
		other := u.b.describePooled(int(u.index), g.loadedOn(u.b, int(u.index)))
		return !first.MayShare(&other)
	})
}

// profilesOf returns ℓ(b) of models by their ids, which are ascending.
func (b *Backend) profilesOf(models []uint32) [][]time.Duration {
	all := make([][]time.Duration, len(models))
	for n, id := range b.ids {
		if k, ok := slices.BinarySearch(models, id); ok && all[k] == nil {
			all[k] = b.hello.Models[n].Profile
		}
	}
	return all
}
