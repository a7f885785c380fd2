package plan

import "math"

// simplex solves the market's linear program by the primal simplex method with generalized upper bounds (Dantzig and
// Van Slyke, 1967). The shares of each bidder sum to 1, so one offer of each bidder, its key, takes the share that
// its other offers leave. The basis to invert then has as many columns as there are kinds, not bidders. A pivot costs
// some 100 ns for three kinds.
type simplex struct {
	kinds    int
	capacity [KindsMax]float64
	first    []int32 // by bidder: its first item; one more at the end
	items    []item
	key      []int32 // by bidder: its key offer, or NotServed
	keyItem  []item  // the key as an item
	left     [KindsMax]float64
	basis    [KindsMax]basic
	level    [KindsMax]float64 // by basis column: its share, or the free GPUs of a slack
	inverse  [KindsMax][KindsMax]float64
	price    [KindsMax]float64
	gap      []float64 // by bidder: the amount by which its second best item is worse at the estimate, as a share
	near     []int32   // bidders of the present stage
	last     []int32   // by bidder: the index of its best item at the last search
	second   []int32   // by bidder: the index of its second best item at the last search
}

// item is the value and the use of GPU time of a bidder's whole rate on one offer.
type item struct {
	value, gpus float64
	kind        uint32
	offer       int32
}

// notServed is the item without an offer: its value and its use are 0.
var notServed = item{offer: NotServed}

// basic is a column of the basis: an item that is not a key, or (bidder Nowhere) the slack of a kind.
type basic struct {
	bidder, offer int32
	item          item
}

// tolerance is relative to a bidder's value.
const tolerance = 1e-10

// readMarket reads the market: the offers at or above the floors, on kinds that have GPUs. Dominated offers are included,
// but they never enter the basis.
func (x *simplex) readMarket(m *Market) {
	x.kinds = len(m.Capacity)
	copy(x.capacity[:], m.Capacity)
	x.first, x.items = x.first[:0], x.items[:0]
	for q := range m.Bidders {
		b := &m.Bidders[q]
		x.first = append(x.first, int32(len(x.items)))
		for j := range b.Offers {
			o := &b.Offers[j]
			if o.Accuracy >= b.Floor && m.Capacity[o.Kind] > 0 {
				x.items = append(x.items, item{b.Rate * (m.Value + o.Accuracy), b.Rate * o.Cost, uint32(o.Kind), int32(j)})
			}
		}
	}

	x.first = append(x.first, int32(len(x.items)))
	x.last, x.second = resize(x.last, len(m.Bidders)), resize(x.second, len(m.Bidders))
	x.key, x.keyItem, x.gap = resize(x.key, len(m.Bidders)), resize(x.keyItem, len(m.Bidders)), resize(x.gap, len(m.Bidders))
}

// gainOf returns the value of an item minus its cost at prices.
func (x *simplex) gainOf(it *item, price *[KindsMax]float64) float64 {
	return it.value - price[it.kind&(KindsMax-1)]*it.gpus
}

// bestAt returns a bidder's best item at prices.
func (x *simplex) bestAt(q int, price *[KindsMax]float64) item {
	items := x.items[x.first[q]:x.first[q+1]]
	if best, _ := x.bestOf(q, items, price); best != Nowhere {
		return items[best]
	}
	return notServed
}

// bestOf returns the index and the gain of a bidder's best item. It begins with the best item of the last search, so
// that most comparisons have the same result: mispredicted branches took half of the time.
func (x *simplex) bestOf(q int, items []item, price *[KindsMax]float64) (best int, most float64) {
	// A gain of 0 is not enough, because not being served costs nothing either.
	best = Nowhere
	if last := int(x.last[q]); last < len(items) {
		if gain := x.gainOf(&items[last], price); gain > 0 {
			best, most = last, gain
		}
	}

	for j := range items {
		if gain := x.gainOf(&items[j], price); gain > most {
			best, most = j, gain
		}
	}
	if best != Nowhere {
		x.last[q] = int32(best)
	}
	return best, most
}

// startAtChoices gives every bidder its choice at the estimated prices while there is room, and nothing otherwise.
// This is a feasible start, and its basis consists of the slacks.
func (x *simplex) startAtChoices() {
	x.left = x.capacity
	for q := range x.key {
		it := &x.keyItem[q]
		if it.gpus > x.left[it.kind] {
			*it, x.gap[q] = notServed, 0
		}
		x.left[it.kind] -= it.gpus
		x.key[q] = it.offer
	}

	// The unused GPUs are the slack of each kind: a basis that needs no inversion.
	for k := range x.kinds {
		x.basis[k] = basic{bidder: Nowhere, offer: int32(k)}
	}
	x.invertBasis()
}

// largerCost returns the cost of the more expensive of two items at x.price.
func (x *simplex) largerCost(a, b *item) float64 {
	return max(x.price[a.kind&(KindsMax-1)]*a.gpus, x.price[b.kind&(KindsMax-1)]*b.gpus)
}

// bestTwoOf returns the best item at x.price, the second best, and the difference of their gains.
func (x *simplex) bestTwoOf(q int) (best, second *item, gap float64) {
	items := x.items[x.first[q]:x.first[q+1]]

	// Mostly they are those of the last search, which takes half as long to see as to find them.
	if b, s := int(x.last[q]), int(x.second[q]); b < len(items) && s < len(items) && b != s {
		most, less := x.gainOf(&items[b], &x.price), x.gainOf(&items[s], &x.price)
		if most >= less && less > 0 && !x.anyGains(items[:b], less) && !x.anyGains(items[b+1:], less) {
			return &items[b], &items[s], most - less
		}
	}
	return x.findTwo(q, items)
}

// anyGains reports whether some item gains more than less at x.price.
func (x *simplex) anyGains(items []item, less float64) bool {
	for j := range items {
		if x.gainOf(&items[j], &x.price) > less {
			return true
		}
	}
	return false
}

// findTwo is bestTwoOf by a search of all items.
func (x *simplex) findTwo(q int, items []item) (best, second *item, gap float64) {
	first, most := x.bestOf(q, items, &x.price)
	next, less := Nowhere, math.Inf(-1)

	// Not being served gains nothing, and is also a choice.
	best, second = &notServed, &notServed
	if first != Nowhere {
		best, less = &items[first], 0
	}

	// Begin with the second best item of the last search, as in bestOf.
	if last := int(x.second[q]); last < len(items) && last != first {
		if gain := x.gainOf(&items[last], &x.price); gain > less {
			next, less = last, gain
		}
	}

	for j := range items {
		if gain := x.gainOf(&items[j], &x.price); gain > less && j != first {
			next, less = j, gain
		}
	}

	if next != Nowhere {
		x.second[q] = int32(next)
		second = &items[next]
	}
	return best, second, most - less
}
