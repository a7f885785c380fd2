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

// reset reads the market: the offers at or above the floors, on kinds that have GPUs. Dominated offers are included,
// but they never enter the basis.
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
	x.invert()
}

// paid returns the cost of the more expensive of two items at x.price.
func (x *simplex) paid(a, b *item) float64 {
	return max(x.price[a.kind&(KindsMax-1)]*a.gpus, x.price[b.kind&(KindsMax-1)]*b.gpus)
}

// bestTwo returns the best item at x.price, the second best, and the difference of their gains.
func (x *simplex) bestTwo(q int) (best, second *item, gap float64) {
	items := x.items[x.first[q]:x.first[q+1]]
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

// column returns an item's use of each kind beyond the use of its bidder's key; for a slack, one GPU of its kind.
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

// invert computes the inverse of the basis, the levels and the prices. It returns false if the basis is singular.
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

	// Gauss-Jordan elimination with partial pivoting: at most eight rows, in practice three.
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

// duals writes the prices. Rounding may have made some of them slightly negative.
func (x *simplex) duals(price []float64) {
	for k := range price {
		price[k] = max(0, x.price[k])
	}
}

// pivotToOptimum enters any item that gains at the present prices, until no item does. It returns the number of
// pivots. Bidders close to a tie at the estimated prices come first: they determine the final prices, and with the
// others the search would move back and forth. Every step keeps a feasible choice, so an early end (a bound on steps,
// a singular basis) costs only value.
func (x *simplex) pivotToOptimum() int {
	pivots, most := 0, 200*len(x.key)+1000
	for _, within := range [...]float64{0.02, 0.2, math.Inf(1)} {
		// A bidder whose gap is not a number, because its value is 0, is close to everything.
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

// pivotRound goes once through the near bidders and the kinds. It returns the number of pivots, and false if
// numerical errors prevent further ones.
func (x *simplex) pivotRound() (pivots int, ok bool) {
	for _, q := range x.near {
		// Prices change with every pivot, so a later bidder of the round already sees the new ones.
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
		if x.price[k] < -tolerance*x.highestPrice() { // GPUs with a negative price are idle
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

// enter raises a column that is not in the basis until another one reaches 0, and takes its place. It returns false
// if numerical errors prevent it.
func (x *simplex) enter(in basic) bool {
	column := x.column(&in)

	var y, pull [KindsMax]float64 // by basis column: the fall of its level; the rise of its key's
	for i := range x.kinds {
		for k := range x.kinds {
			y[i] += x.inverse[i][k] * column[k]
		}
	}

	// The ratio test finds the first limit: a column of the basis that reaches 0, or the key of a bidder. A key has
	// the share that its bidder's columns leave, so it falls as they rise.
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

	// A bidder with no other column in the basis, and with room for all of its requests, simply changes its key.
	if in.bidder != Nowhere && !x.inBasis(in.bidder) && 1 < length {
		x.setKey(in.bidder, in.item)
		x.solve()
		return true
	}

	// A key that reaches 0 is replaced by another column of its bidder.
	switch {
	case key != Nowhere:
		leaves = x.promote(int32(key))
	case leaves == Nowhere:
		return false // there is no limit: numerical errors
	}
	x.basis[leaves] = in
	return x.invert()
}

// keyShare returns the share of a bidder's key.
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

// promote makes a bidder's largest column its key, and returns the column's index, which is now free.
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

// setKey changes a bidder's key, and with it the GPU time that the keys leave of each kind.
func (x *simplex) setKey(q int32, it item) {
	old := &x.keyItem[q]

	x.left[old.kind] += old.gpus
	x.left[it.kind] -= it.gpus
	x.key[q], x.keyItem[q] = it.offer, it
}
