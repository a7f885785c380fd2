package engine

import (
	"fmt"
	"slices"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// Advice of the registry to operators: unique names for metrics, and conditions worth fixing although everything
// runs.

// nameBackend gives a backend a unique name, because its GPUs are identified by it.
func (g *registry) nameBackend(b *Backend) {
	taken := func(name string) bool {
		return slices.ContainsFunc(g.backends, func(x *Backend) bool { return x.name == name })
	}
	b.name = b.hello.Name
	for n := 2; taken(b.name); n++ {
		b.name = fmt.Sprintf("%s#%d", b.hello.Name, n)
	}
	if b.name != b.hello.Name {
		g.e.log.Warn("two backends have one name; give each its own", "name", b.hello.Name, "called", b.name)
	}
}

// passName gives the name of a departed backend to one that asked for the same name. Usually it is the same backend,
// whose new session opened before the end of the old one was noticed; plans identify its GPUs by the name.
func (g *registry) passName(left *Backend) {
	if left.name != left.hello.Name {
		return
	}

	if i := slices.IndexFunc(g.backends, func(b *Backend) bool { return b.hello.Name == left.name }); i >= 0 {
		g.e.log.Info("backend gets the name of its configuration: the other backend of that name has left", "name", left.name, "called", g.backends[i].name)
		g.backends[i].name = left.name
	}
}

// gpuName returns the GPU's name in the hello, or one made of its index.
func gpuName(h *wire.BackendHello, i int) string {
	name := h.GPUs[i]
	if slices.Index(h.GPUs, name) < i {
		return fmt.Sprintf("%s#%d", name, i)
	}
	return name
}

// adviseUnused logs each sub-cluster whose GPUs serve no model, once per occurrence.
func (g *registry) adviseUnused() {
	used := make([]bool, len(g.clusters))
	for _, m := range g.models {
		for i := range m.homes {
			used[m.homes[i].sub] = true
		}
	}

	for _, c := range g.clusters[1:] {
		unused := len(c.gpus) > 0 && !used[c.number]
		if unused && !c.unused {
			var names []string
			for _, u := range c.gpus {
				names = append(names, u.b.name)
			}
			g.e.log.Warn("these GPUs serve no model: they have none loaded, or only models that many sub-clusters with more GPUs have",
				"subcluster", c.label, "gpus", len(c.gpus), "backends", slices.Compact(names), "homes_max", sched.HomesMax)
		}
		c.unused = unused
	}
}

// adviseSlow logs once the models that a new backend runs much slower than the others of its sub-cluster: they may
// have been profiled while its host was busy.
func (g *registry) adviseSlow(b *Backend) {
	var slow []string
	label := ""

	// Compare once per sub-cluster, because a backend's GPUs share its profiles.
	judged := make([]bool, len(g.clusters))
	for _, u := range b.gpus {
		if u == nil || judged[u.sub] {
			continue // nil: no sub-cluster number was left for it
		}
		judged[u.sub] = true

		c := g.clusters[u.sub]
		for _, id := range c.models {
			name := g.models[id].info.Name
			if plan.IsMuchSlower(u.profile(id), c.kindProfile(id, b)) && !slices.Contains(slow, name) {
				slow, label = append(slow, name), c.label
			}
		}
	}

	if len(slow) > 0 {
		g.e.log.Warn("this backend's profiles say more than twice what the other GPUs of its sub-cluster take: measure them anew when its host is quiet",
			"backend", b.name, "subcluster", label, "models", slow)
	}
}

// loadStats returns the load of a sub-cluster.
func (g *registry) loadStats(c *cluster) LoadStats {
	r := g.e.ranker(c.number)
	r.mu.Lock()
	l, steps := r.s.Load(), r.s.SpareStats()
	r.mu.UnlockBehind()

	models := 0
	for _, m := range g.models {
		if slices.ContainsFunc(m.homes, func(h home) bool { return h.sub == c.number }) {
			models++
		}
	}
	return LoadStats{SubCluster: c.label, Pool: c.pool.Name, GPUs: l.GPUs, Idle: l.Idle, Demand: l.Demand, Advice: c.advice, Models: models, Spare: steps}
}
