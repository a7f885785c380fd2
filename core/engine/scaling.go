package engine

import (
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// Each sub-cluster is watched by a plan.Scaler, the one that `downbeat bench scale` runs in virtual time. What it advises is told as a
// metric: who owns the machines obeys it, and the engine starts none.

// scaling is the registry's part of it.
type scaling struct {
	due  sched.Time
	seen []ended // by model id, as of the latest look
}

// ended are requests of a service that got a batch, and that ended because there was none in time.
type ended struct{ sent, bad uint64 }

// adviseSizes shows each sub-cluster's Scaler what has happened since it looked last.
func (g *registry) adviseSizes(now sched.Time) {
	if now < g.scaling.due {
		return
	}
	g.scaling.due = now.Add(sched.Duration(plan.ScaleEvery))

	loads := g.countEnds()
	for _, c := range g.clusters[1:] {
		if g.standsBy || len(c.gpus) == 0 {
			c.stopScaling() // who leads again, or has GPUs again, learns the rates anew
			continue
		}
		if c.scaler == nil {
			c.scaler = plan.NewScaler()
		}

		r := g.e.ranker(c.number)
		r.mu.Lock()
		at := r.s.Load()
		r.mu.Unlock()

		// GPUs that are being started are known to nobody here. They matter only while rates are being learned.
		l := loads[c.number]
		l.Demand, l.GPUs, l.Ordered = at.Demand, at.GPUs, at.GPUs
		advice, err := c.scaler.Observe(time.Duration(now), l)
		if err != nil {
			g.e.log.Error("no size advised", "subcluster", c.label, "err", err) // none of the numbers comes from outside
			continue
		}
		c.advice = advice
	}
}

// stopScaling forgets what a Scaler has seen.
func (c *cluster) stopScaling() { c.scaler, c.advice = nil, plan.Advice{} }

// countEnds returns by sub-cluster the requests that ended since the latest look: each counts for every home that could have
// served it.
func (g *registry) countEnds() []plan.Load {
	loads := make([]plan.Load, len(g.clusters))
	x := &g.scaling
	for len(x.seen) < len(g.models) {
		x.seen = append(x.seen, ended{})
	}

	for _, m := range g.models {
		if m == nil || !m.served() {
			continue
		}
		id := m.info.ID
		p := g.e.partition(sched.ModelID(id))
		p.mu.Lock()
		sent, bad := p.ends(id)
		p.mu.Unlock()

		before := x.seen[id]
		x.seen[id] = ended{sent, bad}
		if sent < before.sent || bad < before.bad {
			continue // the id is another model's now
		}
		for i := range m.homes {
			l := &loads[m.homes[i].sub]
			l.Requests += int(sent - before.sent + bad - before.bad)
			l.Bad += int(bad - before.bad)
		}
	}
	return loads
}
