package policy

import (
	"math/bits"
	"sort"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// groups serves disjoint sets of models on disjoint sets of GPUs.
type groups struct {
	all []*central
	of  []*central // by model
}

func (g *groups) Arrive(now sched.Time, r int32, m int32) { g.of[m].Arrive(now, r, m) }

func (g *groups) Done(now sched.Time, gpu int32) {}

func (g *groups) NextWake() sched.Time {
	at := sched.Never
	for _, c := range g.all {
		at = min(at, c.wake)
	}
	return at
}

func (g *groups) Wake(now sched.Time) {
	for _, c := range g.all {
		if c.wake <= now {
			c.serveFree(now)
		}
	}
}

// NewShepherd returns Shepherd (Zhang et al., NSDI '23). A planner divides models and GPUs into groups for the epoch
// (§4.2); in each group, a free GPU takes at once the largest batch that any model of the group can run in time
// (Flex, §4.3).
//
// Best form: the largest batches of a group's models are within a factor of two, because the largest batch wins and
// smaller ones would starve; groups have GPUs in proportion to their true load; a batch that is passed over keeps its
// place. In mixed zoos the policy still starves models that seldom fill a batch: it maximises served requests in
// total, not per model. Preemption is left out: a GPU of a World runs every batch to its end, and the work of a
// preempted batch is lost either way.
func NewShepherd(w *sim.World) sim.Server {
	g := &groups{of: make([]*central, len(w.Models))}
	for _, set := range planGroups(w) {
		c := newCentral(w)
		c.gpus = set.gpus

		c.pick = func(now, freeAt sched.Time) (int32, int, int) {
			best, skip, size, first := int32(0), 0, 0, sched.Never
			for _, m := range set.models {
				if c.queues[m].Len() == 0 || !c.pruneHeads(now, freeAt, m) {
					continue
				}

				h, b := largestBatch(w, &c.queues[m], m, now, freeAt)
				if d := w.Deadline(c.queues[m].At(h)); b > size || b == size && d < first {
					best, skip, size, first = m, h, b, d
				}
			}
			return best, skip, size
		}

		g.all = append(g.all, c)
		for _, m := range set.models {
			g.of[m] = c
		}
	}
	return g
}

// largestBatch finds the largest batch of a queue that can run in time, the first of that size.
func largestBatch(w *sim.World, q *fifo, m int32, now, freeAt sched.Time) (skip, b int) {
	for h := 0; q.Len()-h > b && b < w.Models[m].Profile.Max(); h++ {
		if n := q.fitBatch(w, m, h, now, freeAt); n > b {
			skip, b = h, n
		}
	}
	return skip, b
}

// herdSet is one group of the plan.
type herdSet struct {
	models []int32
	gpus   []int32
	load   float64 // GPUs needed at the planned batches
}

// planGroups plans the groups by the power of two of the largest batch. It merges groups until there is a GPU for
// each, and distributes GPUs by largest remainder.
func planGroups(w *sim.World) []herdSet {
	sets := make([]herdSet, 0, 20)
	slot := make(map[int]int)
	for m, r := range meanRates(w) {
		b := coordinatedBatch(w, int32(m))

		// Models with similar largest batches, by powers of two, share a group.
		key := bits.Len(uint(w.Models[m].Profile.Max()))
		k, ok := slot[key]
		if !ok {
			k = len(sets)
			slot[key] = k
			sets = append(sets, herdSet{})
		}

		sets[k].models = append(sets[k].models, int32(m))
		sets[k].load += r * execSeconds(w, int32(m), b) / float64(b)
	}

	// With more groups than GPUs, merge the least loaded ones.
	sort.SliceStable(sets, func(i, k int) bool { return sets[i].load > sets[k].load })
	for len(sets) > w.GPUs {
		last := sets[len(sets)-1]
		sets = sets[:len(sets)-1]
		to := &sets[len(sets)-1]
		to.models, to.load = append(to.models, last.models...), to.load+last.load
	}

	total := 0.0
	for _, s := range sets {
		total += s.load
	}
	share := make([]int, len(sets))
	for i := range share {
		share[i] = 1
	}

	for range w.GPUs - len(sets) { // the next GPU goes to the group with the most load per GPU
		best := 0
		for i := range sets {
			if sets[i].load/float64(share[i]) > sets[best].load/float64(share[best]) {
				best = i
			}
		}
		share[best]++
	}

	gpu := int32(0)
	for i := range sets {
		for range share[i] {
			sets[i].gpus = append(sets[i].gpus, gpu)
			gpu++
		}
	}
	return sets
}
