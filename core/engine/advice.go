package engine

import (
	"fmt"
	"slices"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// What the registry tells an operator: which names metrics have, and what of the cluster is not as it
// should be although everything runs.

// nameBackend gives a backend a name that no other one has, since its GPUs are told apart by it.
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

// passName gives the name of a backend that has left to one that said the same. Mostly it is that backend again, whose new session
// opened before the end of the old one was noticed; plans know its GPUs by the name.
func (g *registry) passName(left *Backend) {
	if left.name != left.hello.Name {
		return
	}

	if i := slices.IndexFunc(g.backends, func(b *Backend) bool { return b.hello.Name == left.name }); i >= 0 {
		g.e.log.Info("a backend has the name that it said, now that another one has left", "name", left.name, "called", g.backends[i].name)
		g.backends[i].name = left.name
	}
}

// gpuName tells a backend's GPUs apart where its hello does not.
func gpuName(h *wire.BackendHello, i int) string {
	name := h.GPUs[i]
	if slices.Index(h.GPUs, name) < i {
		return fmt.Sprintf("%s#%d", name, i)
	}
	return name
}

// adviseUnused logs the sub-clusters whose GPUs serve no model, once each time that it becomes so.
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

// adviseSlow logs once which models a backend that has just come runs much slower than the others of its sub-cluster:
// they may have been measured while its host did something else.
func (g *registry) adviseSlow(b *Backend) {
	var slow []string
	label := ""
	for _, u := range b.gpus {
		if u == nil {
			continue // its number of sub-clusters is used up
		}

		c := g.clusters[u.sub]
		for _, id := range c.models {
			name := g.models[id].info.Name
			if plan.IsMuchSlower(b.profileOf(id), c.table(id, b)) && !slices.Contains(slow, name) {
				slow, label = append(slow, name), c.label
			}
		}
	}

	if len(slow) > 0 {
		g.e.log.Warn("this backend's profiles say more than twice what the other GPUs of its sub-cluster take: measure them anew when its host is quiet",
			"backend", b.name, "subcluster", label, "models", slow)
	}
}

// loadStats tells how a sub-cluster fares.
func (g *registry) loadStats(c *cluster) LoadStats {
	r := g.e.ranker(c.number)
	r.mu.Lock()
	l, steps := r.s.Load(), r.s.SpareStats()
	r.mu.Unlock()

	models := 0
	for _, m := range g.models {
		if slices.ContainsFunc(m.homes, func(h home) bool { return h.sub == c.number }) {
			models++
		}
	}
	return LoadStats{SubCluster: c.label, Pool: c.pool.Name, GPUs: l.GPUs, Idle: l.Idle, Demand: l.Demand, Advice: c.advice, Models: models, Spare: steps}
}
