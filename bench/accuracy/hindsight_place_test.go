package accuracy

import (
	"cmp"
	"math"
	"slices"
	"time"

	"downbeat.dev/core/sim"
)

// weigh orders a model's ways by what they are worth at prices of the kinds, but for chance.
func (h *hindsight) weigh(f int, prices []float64) {
	for i := range h.ways[f] {
		x := &h.ways[f][i]
		x.worth = -x.lost - prices[x.kind]*float64(x.exec)/1e9/float64(x.batch)*(1+0.2*h.rng.Float64())
	}
	slices.SortFunc(h.ways[f], func(a, b wayInTime) int { return cmp.Compare(b.worth, a.worth) })
}

// gathers reports whether the first requests of a queue can be in one batch.
func (h *hindsight) gathers(f int, q []int32, x *wayInTime) bool {
	return x.batch <= len(q) && h.w.Arrivals[q[x.batch-1]].At-h.w.Arrivals[q[0]].At <= time.Duration(h.w.Models[f].SLO)-time.Duration(x.exec)
}

// next returns the model whose first request is due first, but for chance; −1: all have a place.
func (h *hindsight) next() int {
	best, least := -1, math.Inf(1)
	for f, q := range h.queues {
		if len(q) == 0 {
			continue
		}
		if due := float64(h.w.Arrivals[q[0]].At) + float64(h.w.Models[f].SLO)*(0.5+h.rng.Float64()); due < least {
			best, least = f, due
		}
	}
	return best
}

// place answers the first requests of a model in the batch that is worth most, and reports whether there is one.
func (h *hindsight) place(f int) bool {
	q := h.queues[f]
	due := sim.Time(h.w.Arrivals[q[0]].At) + sim.Time(h.w.Models[f].SLO)
	for i := range h.ways[f] {
		x := &h.ways[f][i]
		if !h.gathers(f, q, x) {
			continue
		}
		ready := sim.Time(h.w.Arrivals[q[x.batch-1]].At)
		d, at, start := h.gap(x, ready, due-x.exec)
		if d < 0 {
			continue
		}

		b := batchInTime{int32(f), int32(x.variant), start, start + x.exec, slices.Clone(q[:x.batch])}
		if _, has := h.before[d]; !has {
			h.before[d] = h.devices[d]
		}
		h.devices[d] = slices.Concat(h.devices[d][:at], []batchInTime{b}, h.devices[d][at:])
		h.count(&b, 1)
		h.queues[f] = q[x.batch:]
		return true
	}
	return false
}

// gap finds a device that is free for a batch which starts between ready and latest: the one where the least time passes
// unused before. −1: there is none.
func (h *hindsight) gap(x *wayInTime, ready, latest sim.Time) (device, at int, start sim.Time) {
	device = -1
	least := sim.Time(math.MaxInt64)
	for _, d := range h.kinds[x.kind] {
		all := h.devices[d]
		i, _ := slices.BinarySearchFunc(all, ready, func(b batchInTime, t sim.Time) int { return cmp.Compare(b.end, t) })
		free := sim.Time(0)
		if i > 0 {
			free = all[i-1].end
		}
		for ; max(free, ready) <= latest; i++ {
			begin := max(free, ready)
			if i == len(all) || begin+x.exec <= all[i].start {
				if begin-free < least {
					least, device, at, start = begin-free, d, i, begin
				}
				break
			}
			free = all[i].end
		}
	}
	return device, at, start
}
