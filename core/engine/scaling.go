package engine

import (
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// A plan.Scaler watches each sub-cluster; `downbeat bench scale` runs the same code in virtual time. Its advice is
// exported as a metric: the owner of the machines follows it, and the engine starts none.

// scaling is the registry's state of scaling.
type scaling struct {
	due  sched.Time
	seen []ended // by model id, as of the latest look
}

// ended counts requests of a service that got a batch (sent), and that ended because no batch was in time (bad).
type ended struct{ sent, bad uint64 }

// adviseSizes gives each sub-cluster's Scaler the events since its last look.
func (g *registry) adviseSizes(now sched.Time) {
	if now < g.scaling.due {
		return
	}
	g.scaling.due = now.Add(sched.Duration(plan.ScaleEvery))

	loads := g.countEnds()
	for _, c := range g.clusters[1:] {
		if g.standsBy || len(c.gpus) == 0 {
			c.stopScaling() // a new leader, or a sub-cluster with new GPUs, learns the rates again
			continue
		}
		if c.scaler == nil {
			c.scaler = plan.NewScaler()
		}

		// The ranker knows the demand at this moment.
		r := g.e.ranker(c.number)
		r.mu.Lock()
		at := r.s.Load()
		r.mu.UnlockBehind()

		// The number of GPUs being started is unknown here. It matters only while rates are being learned.
		l := loads[c.number]
		l.Demand, l.GPUs, l.Ordered = at.Demand, at.GPUs, at.GPUs
		advice, err := c.scaler.Observe(time.Duration(now), l)
		if err != nil {
			g.e.log.Error("no size advised", "subcluster", c.label, "err", err) // no number comes from outside
			continue
		}
		c.advice = advice
	}
}

// stopScaling drops a Scaler's measurements.
func (c *cluster) stopScaling() { c.scaler, c.advice = nil, plan.Advice{} }

// countEnds returns by sub-cluster the requests that ended since the latest look. Each counts for every home that
// could have served it.
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
		sent, bad := p.countEnds(id)
		p.mu.UnlockBehind()

		before := x.seen[id]
		x.seen[id] = ended{sent, bad}
		if sent < before.sent || bad < before.bad {
			continue // the id belongs to another model now
		}
		for i := range m.homes {
			l := &loads[m.homes[i].sub]
			l.Requests += int(sent - before.sent + bad - before.bad)
			l.Bad += int(bad - before.bad)
		}
	}
	return loads
}
