package plan

import "math"

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
			if !x.enterColumn(basic{q, it.offer, it}) {
				return pivots, false
			}
			pivots++
		}
	}

	for k := range x.kinds {
		if x.price[k] < -tolerance*x.highestPrice() { // GPUs with a negative price are idle
			if !x.enterColumn(basic{bidder: Nowhere, offer: int32(k)}) {
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

// enterColumn raises a column that is not in the basis until another one reaches 0, whose place it takes. It returns
// false if numerical errors prevent it.
func (x *simplex) enterColumn(in basic) bool {
	column := x.columnOf(&in)

	var y, pull [KindsMax]float64 // by basis column: the fall of its level; the rise of its key's
	for i := range x.kinds {
		for k := range x.kinds {
			y[i] += x.inverse[i][k] * column[k]
		}
	}

	// The ratio test finds the first limit: a column of the basis that reaches 0, or the key of a bidder. A key has
	// the share that its bidder's columns leave, so it falls as they rise.
	length, leaves, key := math.Inf(1), Nowhere, Nowhere
	for i := range x.kinds {
		if b := x.basis[i].bidder; b != Nowhere {
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
		x.solveLevels()
		return true
	}

	// A key that reaches 0 is replaced by another column of its bidder.
	switch {
	case key != Nowhere:
		leaves = x.promoteColumn(int32(key))
	case leaves == Nowhere:
		return false // there is no limit: numerical errors
	}
	x.basis[leaves] = in
	return x.invertBasis()
}
