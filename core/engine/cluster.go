package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
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

// kindProfile returns the profile of a model in a sub-cluster, measured by its backends other than except; nil if none has
// it loaded.
func (c *cluster) kindProfile(id uint32, except *Backend) []time.Duration {
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

func (c *cluster) removeGPU(u *gpu) {
	c.gpus = slices.DeleteFunc(c.gpus, func(x *gpu) bool { return x == u })
}
