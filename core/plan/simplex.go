package plan

import "math"

// simplex solves the market's linear program by the primal simplex method with generalized upper
// bounds (Dantzig and Van Slyke, 1967): each bidder's shares sum to 1, so one offer of each bidder,
// its key, takes what the others leave, and the basis that must be inverted has as many columns as
// there are kinds, not bidders. A pivot costs some 100 ns for three kinds.
type simplex struct {
	kinds    int
	capacity [KindsMax]float64
	first    []int32 // by bidder: its first item; one more at the end
	items    []item
	key      []int32 // by bidder: the offer that is its key, or NotServed
	keyItem  []item  // the same as an item
	left     [KindsMax]float64
	basis    [KindsMax]basic
	level    [KindsMax]float64 // by basis column: its share, or the free GPUs of a slack
	inverse  [KindsMax][KindsMax]float64
	price    [KindsMax]float64
	gap      []float64 // by bidder: what its next best item is short of, as a share, at the estimate
	near     []int32   // bidders of the stage under way
	last     []int32   // by bidder: the index of the item that was best the last time
	second   []int32   // by bidder: the same of the second best
}

// item is what a bidder's whole rate on one offer is worth and takes.
type item struct {
	value, gpus float64
	kind        uint32
	offer       int32
}

// notServed is the item of no offer: it is worth nothing and takes nothing.
var notServed = item{offer: NotServed}

// basic is a column of the basis: an item that is no key, or (bidder Nowhere) the slack of a kind.
type basic struct {
	bidder, offer int32
	item          item
}

// tolerance is relative to a bidder's value.
const tolerance = 1e-10

// reset takes over the market: the offers at or above the floors, on kinds that there are. Dominated
// ones stay in: they never enter.
func (x *simplex) reset(m *Market) {
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

// gainOf is what an item leaves of its value at prices.
func (x *simplex) gainOf(it *item, price *[KindsMax]float64) float64 {
	return it.value - price[it.kind&(KindsMax-1)]*it.gpus
}

// bestAt is a bidder's best item at prices.
func (x *simplex) bestAt(q int, price *[KindsMax]float64) item {
	items := x.items[x.first[q]:x.first[q+1]]
	if best, _ := x.bestOf(q, items, price); best != Nowhere {
		return items[best]
	}
	return notServed
}

// bestOf returns the place and the gain of a bidder's best item. It looks first at what was best the last time, so that
// most comparisons end the same way: half of the time was lost in mispredicted branches.
func (x *simplex) bestOf(q int, items []item, price *[KindsMax]float64) (best int, most float64) {
	// A gain of 0 is not enough: not being served costs nothing either.
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

// startAtChoices gives every bidder what it chose at the estimated prices as long as there is room, and otherwise
// nothing: a feasible start whose basis is the slacks.
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

	// What nobody has taken is the slack of each kind: a basis that needs no inverting.
	for k := range x.kinds {
		x.basis[k] = basic{bidder: Nowhere, offer: int32(k)}
	}
	x.invert()
}

// paid is what the dearer of two items costs at x.price.
func (x *simplex) paid(a, b *item) float64 {
	return max(x.price[a.kind&(KindsMax-1)]*a.gpus, x.price[b.kind&(KindsMax-1)]*b.gpus)
}

// bestTwo is bestAt x.price, the second best item, and how much less that gains.
func (x *simplex) bestTwo(q int) (best, second *item, gap float64) {
	items := x.items[x.first[q]:x.first[q+1]]
	first, most := x.bestOf(q, items, &x.price)

	next, less := Nowhere, math.Inf(-1)

	// Not to be served gains nothing, and is a choice as well.
	best, second = &notServed, &notServed
	if first != Nowhere {
		best, less = &items[first], 0
	}

	// The one that was second the last time is looked at first, as in bestOf.
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

// column is an item's use of each kind beyond its bidder's key's; of a slack, one GPU of its kind.
func (x *simplex) column(b *basic) (c [KindsMax]float64) {
	if b.bidder == Nowhere {
		c[b.offer] = 1
		return c
	}
	key := &x.keyItem[b.bidder]
	c[b.item.kind] += b.item.gpus
	c[key.kind] -= key.gpus
	return c
}

// invert computes the inverse of the basis, the levels and the prices. It reports false for a basis
// that is singular.
func (x *simplex) invert() bool {
	var a [KindsMax][2 * KindsMax]float64

	n := x.kinds
	for i := range n {
		c := x.column(&x.basis[i])
		for k := range n {
			a[k][i] = c[k]
		}
		a[i][n+i] = 1
	}

	// Gauss and Jordan with partial pivoting: at most eight rows, in practice three.
	for i := range n {
		pivot := i
		for k := i + 1; k < n; k++ {
			if abs(a[k][i]) > abs(a[pivot][i]) {
				pivot = k
			}
		}
		if abs(a[pivot][i]) < 1e-300 {
			return false
		}
		a[i], a[pivot] = a[pivot], a[i]

		scale := 1 / a[i][i]
		for c := i; c < 2*n; c++ {
			a[i][c] *= scale
		}
		for k := range n {
			if f := a[k][i]; k != i && f != 0 {
				for c := i; c < 2*n; c++ {
					a[k][c] -= f * a[i][c]
				}
			}
		}
	}

	for i := range n {
		copy(x.inverse[i][:n], a[i][n:2*n])
	}
	x.solve()
	return true
}

// solve computes levels and prices from the inverse.
func (x *simplex) solve() {
	for k := range x.kinds {
		x.level[k], x.price[k] = 0, 0
	}
	for i := range x.kinds {
		gain := 0.0
		if b := &x.basis[i]; b.bidder != Nowhere {
			gain = b.item.value - x.keyItem[b.bidder].value
		}
		for k := range x.kinds {
			x.level[i] += x.inverse[i][k] * x.left[k]
			x.price[k] += gain * x.inverse[i][k]
		}
	}
}

// duals writes the prices, of which rounding may have made some a little negative.
func (x *simplex) duals(price []float64) {
	for k := range price {
		price[k] = max(0, x.price[k])
	}
}

// pivotToOptimum takes in whatever gains at the present prices, until nothing does. It returns the
// number of pivots. Bidders who are near to a tie at the estimated prices come first: they are the
// ones that the last prices hang on, and with the others the search would go up and down.
// Every step keeps a feasible choice, so an end before the optimum (a bound on steps, a singular
// basis) costs value and nothing else.
func (x *simplex) pivotToOptimum() int {
	pivots, most := 0, 200*len(x.key)+1000
	for _, within := range [...]float64{0.02, 0.2, math.Inf(1)} {
		// A bidder with a gap that is not a number, whose value is 0, is near to everything.
		x.near = x.near[:0]
		for q := range x.key {
			if !(x.gap[q] > within) {
				x.near = append(x.near, int32(q))
			}
		}
		for more := true; more && pivots < most; {
			n, ok := x.pivotRound()
			pivots += n
			more = n > 0
			if !ok {
				return pivots
			}
		}
	}
	return pivots
}

// pivotRound goes once round the near bidders and the kinds, and reports how often it pivoted, and
// false where numbers no longer allow it.
func (x *simplex) pivotRound() (pivots int, ok bool) {
	for _, q := range x.near {
		// The present prices change with every pivot, so a later bidder of the round already sees the new
		// ones.
		it := x.bestAt(int(q), &x.price)
		key := &x.keyItem[q]
		gain := it.value - x.price[it.kind]*it.gpus - (key.value - x.price[key.kind]*key.gpus)

		if gain > tolerance*max(it.value, key.value) {
			if !x.enter(basic{q, it.offer, it}) {
				return pivots, false
			}
			pivots++
		}
	}

	for k := range x.kinds {
		if x.price[k] < -tolerance*x.highestPrice() { // GPUs of a negative price idle
			if !x.enter(basic{bidder: Nowhere, offer: int32(k)}) {
				return pivots, false
			}
			pivots++
		}
	}
	return pivots, true
}

func (x *simplex) highestPrice() (most float64) {
	for k := range x.kinds {
		most = max(most, abs(x.price[k]))
	}
	return most
}

// enter raises a column that is not in the basis until something else reaches 0, and takes its
// place. It reports false where numbers no longer allow it.
func (x *simplex) enter(in basic) bool {
	column := x.column(&in)

	var y, pull [KindsMax]float64 // by basis column: how fast its level falls; its key's rises
	for i := range x.kinds {
		for k := range x.kinds {
			y[i] += x.inverse[i][k] * column[k]
		}
	}

	// The ratio test. Besides the basis's own columns each bidder's key can run out: it has what the bidder's
	// columns leave, so it falls as they rise.
	// What is exhausted first: a column of the basis, or the key of a bidder.
	length, leaves, key := math.Inf(1), Nowhere, Nowhere
	ownPull := 0.0
	for i := range x.kinds {
		if b := x.basis[i].bidder; b != Nowhere {
			if b == in.bidder {
				ownPull += y[i]
			}
			for j := range x.kinds {
				if x.basis[j].bidder == b {
					pull[i] += y[j]
				}
			}
		}
		if y[i] > 1e-12 && max(0, x.level[i])/y[i] < length {
			length, leaves = max(0, x.level[i])/y[i], i
		}
	}

	for i := range x.kinds {
		b := x.basis[i].bidder
		if b == Nowhere {
			continue
		}
		fall := -pull[i]
		if b == in.bidder {
			fall++
		}
		if share := x.keyShare(b); fall > 1e-12 && share/fall < length {
			length, leaves, key = share/fall, Nowhere, int(b)
		}
	}

	// A bidder that is nowhere else in the basis, and for all of whose requests there is room, simply changes
	// its key.
	if in.bidder != Nowhere && !x.inBasis(in.bidder) && 1 < length {
		x.setKey(in.bidder, in.item)
		x.solve()
		return true
	}

	// A key that runs out leaves its place to another column of its bidder.
	switch {
	case key != Nowhere:
		leaves = x.promote(int32(key))
	case leaves == Nowhere:
		return false // nothing stops it: the numbers have gone bad
	}
	x.basis[leaves] = in
	return x.invert()
}

// keyShare is what a bidder's key has.
func (x *simplex) keyShare(q int32) float64 {
	share := 1.0
	for i := range x.kinds {
		if x.basis[i].bidder == q {
			share -= x.level[i]
		}
	}
	return max(0, share)
}

func (x *simplex) inBasis(q int32) bool {
	for i := range x.kinds {
		if x.basis[i].bidder == q {
			return true
		}
	}
	return false
}

// promote makes a bidder's largest column its key, and returns the column's place, which is free then.
func (x *simplex) promote(q int32) int {
	largest := Nowhere

	for i := range x.kinds {
		if x.basis[i].bidder == q && (largest == Nowhere || x.level[i] > x.level[largest]) {
			largest = i
		}
	}
	x.setKey(q, x.basis[largest].item)
	return largest
}

// setKey changes a bidder's key, and with it what the keys leave of each kind.
func (x *simplex) setKey(q int32, it item) {
	old := &x.keyItem[q]

	x.left[old.kind] += old.gpus
	x.left[it.kind] -= it.gpus
	x.key[q], x.keyItem[q] = it.offer, it
}
