package policy

import (
	"math"
	"sort"

	"downbeat.dev/core/sim"
)

// session is a model's part of a GPU: the planned batch per turn and the assigned rate.
type session struct {
	model int32
	batch int
	rate  float64 // requests/s
}

// node is one GPU's sessions, which share its duty cycle.
type node struct {
	duty     float64 // seconds
	sessions []session
}

func (n node) busyShare(w *sim.World) float64 {
	sum := 0.0
	for _, s := range n.sessions {
		sum += float64(execTime(w, s.model, s.batch)) / 1e9
	}
	return sum / n.duty
}

// meanRates returns each model's rate over the whole workload: static plans get the true rates of the coming epoch,
// which no online system knows.
func meanRates(w *sim.World) []float64 {
	if w.Rates != nil {
		return w.Rates
	}
	out := make([]float64, len(w.Models))
	if len(w.Arrivals) == 0 {
		return out
	}

	for _, a := range w.Arrivals {
		out[a.Model]++
	}
	span := max(float64(w.Arrivals[len(w.Arrivals)-1].At)/1e9, 1e-9)
	for m := range out {
		out[m] /= span
	}
	return out
}

// packModels is Nexus's squishy bin packing (Shen et al., SOSP '19, §6.1, algorithm 1) of the models at the given
// rates: first GPUs saturated by one model, then the residues, largest occupancy first, each merged where the common
// duty cycle wastes least.
func packModels(w *sim.World, rates []float64) []node {
	var full, rest []node
	for i, r := range rates {
		m := int32(i)
		slo := float64(w.Models[i].SLO) / 1e9
		if r <= 0 {
			r = 1e-3 // a model without requests needs a place, too
		}

		// As many whole GPUs as its rate fills …
		b := coordinatedBatch(w, m)
		l := execSeconds(w, m, b)
		for ; r >= float64(b)/l; r -= float64(b) / l {
			full = append(full, node{l, []session{{m, b, float64(b) / l}}})
		}

		if r <= 1e-9 {
			continue
		}

		// … and for the rest a share of one, with the largest batch that forms and runs within the SLO.
		b = 1
		for b < w.Models[i].Profile.Max() && execSeconds(w, m, b+1)+float64(b+1)/r <= slo {
			b++
		}

		duty := max(min(float64(b)/r, slo-execSeconds(w, m, b)), execSeconds(w, m, b))
		rest = append(rest, node{duty, []session{{m, b, r}}})
	}

	// Place the busiest first, each on the GPU that it fills best.
	sort.SliceStable(rest, func(i, k int) bool { return rest[i].busyShare(w) > rest[k].busyShare(w) })
	var nodes []node
	for _, r := range rest {
		best, at := -1.0, 0
		var into node
		for k, n := range nodes {
			if merged, ok := mergeNodes(w, n, r); ok && merged.busyShare(w) > best {
				best, at, into = merged.busyShare(w), k, merged
			}
		}

		if best < 0 {
			nodes = append(nodes, r)
		} else {
			nodes[at] = into
		}
	}
	return append(full, nodes...)
}

// mergeNodes puts two nodes on one GPU at the shorter duty cycle; false: they do not fit.
func mergeNodes(w *sim.World, a, b node) (node, bool) {
	out := node{duty: min(a.duty, b.duty)}
	busy := 0.0

	for _, s := range append(append([]session(nil), a.sessions...), b.sessions...) {
		// A batch forms over one duty cycle. The small term keeps rounding from adding a request.
		s.batch = max(1, int(math.Ceil(s.rate*out.duty-1e-9)))
		if s.batch > w.Models[s.model].Profile.Max() {
			return out, false
		}

		// A request waits for one cycle and runs in the next batch.
		l := execSeconds(w, s.model, s.batch)
		if out.duty+l > float64(w.Models[s.model].SLO)/1e9 {
			return out, false
		}
		busy += l
		out.sessions = append(out.sessions, s)
	}
	return out, busy <= out.duty
}

// coordinatedBatch returns the largest b with 2ℓ(b) ≤ SLO (Symphony §4.2, equation 1), at least 1.
func coordinatedBatch(w *sim.World, m int32) int {
	b := 1
	for b < w.Models[m].Profile.Max() && 2*execTime(w, m, b+1)+w.Lead(b+1) <= w.Models[m].SLO {
		b++
	}
	return b
}

func execSeconds(w *sim.World, m int32, b int) float64 { return float64(execTime(w, m, b)) / 1e9 }

// ownGPUs plans for policies that cannot share a GPU: each model gets GPUs of its own if there are enough.
func ownGPUs(w *sim.World) []node {
	if own, _ := giveOwn(w); own != nil {
		return own
	}
	return planNodes(w)
}

// planNodes places the models for the epoch: packed with the most headroom that the GPUs allow, or each model on its
// own GPUs if that has almost as much headroom, since turns on a shared GPU disturb each other.
func planNodes(w *sim.World) []node {
	packed, most := spreadNodes(w)
	own, least := giveOwn(w)
	if own != nil && least >= 0.85*most {
		return own
	}
	return packed
}

// spreadNodes packs with the most headroom that the GPUs allow, the same for every model, and splits the busiest
// nodes over the remaining GPUs. It returns the headroom.
func spreadNodes(w *sim.World) ([]node, float64) {
	rates := meanRates(w)

	at := func(f float64) []node {
		scaled := make([]float64, len(rates))
		for i, r := range rates {
			scaled[i] = r * f
		}
		return packModels(w, scaled)
	}

	// The highest multiple of all rates that fits the GPUs.
	lo, hi := 0.0, 64.0
	var best []node
	for range 40 {
		mid := (lo + hi) / 2
		if nodes := at(mid); len(nodes) <= w.GPUs {
			lo, best = mid, nodes
		} else {
			hi = mid
		}
	}

	// Not even almost no load fits: share GPUs beyond the plan's limits.
	if best == nil {
		best = crowdNodes(w, at(1e-6))
	}

	// Each remaining GPU takes half of the busiest one.
	for len(best) < w.GPUs {
		k := 0
		for i, n := range best {
			if loadOf(n) > loadOf(best[k]) {
				k = i
			}
		}

		half := node{best[k].duty, append([]session(nil), best[k].sessions...)}
		for i := range half.sessions {
			half.sessions[i].rate /= 2
			best[k].sessions[i].rate /= 2
		}
		best = append(best, half)
	}
	return best, lo
}

// giveOwn gives each model GPUs of its own, one after another to the model with the most load per GPU, and returns
// the smallest headroom; nil if there are fewer GPUs than models.
func giveOwn(w *sim.World) ([]node, float64) {
	if w.GPUs < len(w.Models) {
		return nil, 0
	}

	rates := meanRates(w)
	share, need := make([]int, len(rates)), make([]float64, len(rates))
	for i, r := range rates {
		// need is in GPUs, at the batch that fits twice into the SLO.
		b := coordinatedBatch(w, int32(i))
		share[i], need[i] = 1, r*execSeconds(w, int32(i), b)/float64(b)
	}

	// The next GPU goes to the model with the most work per GPU.
	for range w.GPUs - len(rates) {
		best := 0
		for i := range need {
			if need[i]/float64(share[i]) > need[best]/float64(share[best]) {
				best = i
			}
		}
		share[best]++
	}

	var out []node
	least := math.Inf(1)
	for i, n := range share {
		// The smallest multiple of its rate that any model's GPUs sustain, for comparison with a packed plan.
		least = min(least, float64(n)/max(need[i], 1e-9))
		b := coordinatedBatch(w, int32(i))
		for range n {
			out = append(out, node{execSeconds(w, int32(i), b), []session{{int32(i), b, max(rates[i], 1e-3) / float64(n)}}})
		}
	}
	return out, least
}

// loadOf orders nodes for splitting: their assigned load over their capacity.
func loadOf(n node) float64 {
	sum := 0.0
	for _, s := range n.sessions {
		sum += s.rate / float64(s.batch)
	}
	return sum * n.duty
}

// crowdNodes folds nodes onto the existing GPUs if even one turn per model does not fit.
func crowdNodes(w *sim.World, nodes []node) []node {
	out := make([]node, min(w.GPUs, len(nodes)))
	for i, n := range nodes {
		k := i % len(out)
		out[k].duty = max(out[k].duty, n.duty)
		out[k].sessions = append(out[k].sessions, n.sessions...)
	}
	return out
}
