package swarm

import (
	"fmt"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
)

// movableModel returns a model for a run in which models move. The models of a group are equal, and each sub-cluster
// gets one of them, so that the load stays even. A model batches as vision models do, and its SLO is several times the
// latency of its largest batch.
func movableModel(i, group int) clusterModel {
	alpha, beta := 0.4e6+0.1e6*float64(group*7%10), 3e6+0.5e6*float64(group*3%10)
	m := clusterModel{name: fmt.Sprintf("m%d", i), table: make([]time.Duration, 16), slo: 100e6, static: 100<<20 + uint64(group*37%11)*(40<<20)}
	for b := range m.table {
		m.table[b] = time.Duration(alpha*float64(b+1) + beta)
	}
	m.cost = float64(m.table[15]) / 16
	return m
}

// homeOf returns a model's first sub-cluster.
func (c *Cluster) homeOf(model int) int { return model % c.o.Clusters }

// planDocument returns a plan in which every model is as many sub-clusters behind its first one as shift says.
func (c *Cluster) planDocument(number uint64, shift []int) engine.Plan {
	p := engine.Plan{Number: number}
	for k := range c.models {
		x := engine.PlannedModel{Model: c.models[k].name, Version: "1"}

		// All GPUs of a sub-cluster hold its models.
		for _, b := range c.backs {
			if b.index%c.o.Clusters == (c.homeOf(k)+shift[k])%c.o.Clusters {
				for g := range c.o.GPUs {
					x.GPUs = append(x.GPUs, fmt.Sprintf("%s/%d", b.hello.Name, g))
				}
			}
		}
		p.Models = append(p.Models, x)
	}
	return p
}

// stockModels gives a backend all models. The models of its sub-cluster are loaded, and its memory has room for one more.
func (b *back) stockModels(cluster int) {
	c := b.c
	var used, largest, dynamic uint64
	for k := range c.models {
		m := &c.models[k]
		there := c.homeOf(k) == cluster

		// A run needs a quarter of the weights' memory for outputs and scratch.
		info := &b.hello.Models[k].Info
		info.Static, info.Dynamic = m.static, m.static/4
		if there {
			used += info.Static
		}
		largest, dynamic = max(largest, info.Static), max(dynamic, info.Dynamic)

		on := make([]bool, c.o.GPUs)
		for g := range on {
			on[g] = there
		}
		b.memory.loaded = append(b.memory.loaded, on)
	}

	// The memory has room for one model that moves here, not for two.
	for range c.o.GPUs {
		b.memory.used = append(b.memory.used, used)
		b.hello.Details = append(b.hello.Details, wire.GPUDetail{Kind: "simulated", Memory: used + largest + dynamic + largest/2})
	}
}

// endMoves records on which GPUs the models are at the end of a run.
func (c *Cluster) endMoves() {
	s := c.leader()
	if !c.o.loadsModels() || s == nil {
		return
	}

	c.report.Moves.Epochs = s.engine.Stats().Epochs
	now, err := s.engine.PlanStatus()
	if err != nil {
		c.check.fail("PlanStatus: %v", err)
		return
	}

	// Unless the run's plans moved models, each model belongs to its first sub-cluster.
	offered := offeredGPUs(&now)
	shift := make([]int, len(c.models))
	if c.moves != nil {
		shift = c.moves.shift
	}

	for _, x := range c.planDocument(0, shift).Models {
		at := offered[x.Model+":"+x.Version]
		if len(at) == 0 {
			c.report.Moves.Homeless++
		}

		right := len(at) == len(x.GPUs)
		for _, g := range x.GPUs {
			right = right && at[g]
		}
		if !right {
			c.report.Moves.Elsewhere++
		}
	}
}

// offeredGPUs returns the GPUs that offer each model, by "name:version".
func offeredGPUs(now *engine.PlanStatus) map[string]map[string]bool {
	offered := map[string]map[string]bool{}
	for _, g := range now.GPUs {
		for _, m := range g.Models {
			if m.State != "offered" {
				continue
			}
			if offered[m.Model] == nil {
				offered[m.Model] = map[string]bool{}
			}
			offered[m.Model][g.GPU] = true
		}
	}
	return offered
}
