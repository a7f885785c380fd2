package app

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// Remains is the rest of a promise after a loss of GPUs.
type Remains struct {
	Rate  float64       // frames/s; 0: it is evicted
	Phase time.Duration // of its frames within the period of Rate
}

// Readmit reduces promises to fit the remaining GPUs. Promises give way in the order of their claims, and only as
// many as the trial requires (UNIFIED U10): first the rates of sessions that accept fewer frames are lowered one by
// one, then sessions are evicted one by one. Spare GPUs count here, since they exist for this case.
//
// The number of trials is logarithmic in twice the number of promises, since each sacrifice makes room for the
// promises that stay.
func Readmit(c Capacity, open []Promise, trial Trial) []Remains {
	// GPUs taken by requests without a session are not available.
	demand := 0.0
	for i := range open {
		demand += open[i].Demand
	}
	c.leaveOthers(demand)

	order := yielding(open)
	k := sort.Search(2*len(open), func(k int) bool {
		return keepsAll(c, remaining(open, sacrifice(open, order, k)), trial)
	})
	return sacrifice(open, order, k)
}

// yielding returns the order in which promises give way.
func yielding(open []Promise) []int {
	order := make([]int, len(open))
	for i := range order {
		order[i] = len(order) - 1 - i // later ones first
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(open[a].Claim, open[b].Claim) })
	return order
}

// sacrifice returns what remains after k sacrifices. Every promise lowers its rate before any is evicted.
func sacrifice(open []Promise, order []int, k int) []Remains {
	all := make([]Remains, len(open))
	for place, i := range order {
		p := &open[i]
		switch {
		case place < k-len(order):
			all[i] = Remains{}
		case place < k && p.Least > 0 && p.Least < p.Rate:
			// Keep one of several frames, a different one for different sessions, so that the kept frames do not
			// coincide.
			among := max(1, int(p.Rate/p.Least+0.5))
			all[i] = Remains{p.Least, p.Phase + time.Duration(place%among)*p.Period()}
		default:
			all[i] = Remains{p.Rate, p.Phase}
		}
	}
	return all
}

// remaining returns the promises with their remaining rates, without the evicted ones.
func remaining(open []Promise, remains []Remains) []Promise {
	var rest []Promise
	for i, r := range remains {
		if r.Rate > 0 {
			p := open[i]
			p.Demand *= r.Rate / p.Rate
			p.Rate, p.Phase = r.Rate, r.Phase
			rest = append(rest, p)
		}
	}
	return rest
}

// keepsAll reports whether admitted promises are kept with this capacity. An empty set is kept.
func keepsAll(c Capacity, all []Promise, trial Trial) bool {
	if len(all) == 0 {
		return true
	}

	// Skip the trial if the demand is far too large: such trials take longest.
	demand := 0.0
	for i := range all {
		demand += all[i].Demand
	}
	return c.GPUs > 0 && demand <= c.trialDemand() && (trial == nil || trial(c, all))
}
