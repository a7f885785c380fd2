package app

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// Remains is what is left of a promise when GPUs are lost.
type Remains struct {
	Rate  float64       // frames/s; 0: it is evicted
	Phase time.Duration // when in its period, which is that of Rate, its frames come
}

// Readmit says what remains of the promises on the GPUs that are left. Promises give way by claim, and no more of them than the
// trial asks for (UNIFIED U10): first those that can do with fewer frames have fewer, and only when all of these have, one after another
// is evicted. Spare GPUs count: they are there for this.
//
// It takes as many trials as the logarithm of twice the promises, since each sacrifice makes room for those that stay.
func Readmit(c Capacity, open []Promise, trial Trial) []Remains {
	// What requests without a session take is not for promises.
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

// yielding is the order in which promises give way.
func yielding(open []Promise) []int {
	order := make([]int, len(open))
	for i := range order {
		order[i] = len(order) - 1 - i // later ones first
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(open[a].Claim, open[b].Claim) })
	return order
}

// sacrifice is what remains after k sacrifices: every promise gives up frames before any is evicted.
func sacrifice(open []Promise, order []int, k int) []Remains {
	all := make([]Remains, len(open))
	for place, i := range order {
		p := &open[i]
		switch {
		case place < k-len(order):
			all[i] = Remains{}
		case place < k && p.Least > 0 && p.Least < p.Rate:
			// Of several of its frames one is left: not the same one of every session, or they would come at once.
			among := max(1, int(p.Rate/p.Least+0.5))
			all[i] = Remains{p.Least, p.Phase + time.Duration(place%among)*p.Period()}
		default:
			all[i] = Remains{p.Rate, p.Phase}
		}
	}
	return all
}

// remaining are the promises as they remain, without those that are evicted.
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

// keepsAll tells whether promises that were admitted once are kept with this capacity. Nobody breaks none.
func keepsAll(c Capacity, all []Promise, trial Trial) bool {
	if len(all) == 0 {
		return true
	}

	// A trial of what cannot fit takes longest of all.
	demand := 0.0
	for i := range all {
		demand += all[i].Demand
	}
	return c.GPUs > 0 && demand <= c.trialDemand() && (trial == nil || trial(c, all))
}
