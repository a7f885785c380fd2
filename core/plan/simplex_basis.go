package plan

// columnOf returns an item's use of each kind beyond the use of its bidder's key; for a slack, one GPU of its kind.
func (x *simplex) columnOf(b *basic) (c [KindsMax]float64) {
	if b.bidder == Nowhere {
		c[b.offer] = 1
		return c
	}
	key := &x.keyItem[b.bidder]
	c[b.item.kind] += b.item.gpus
	c[key.kind] -= key.gpus
	return c
}

// invertBasis computes the inverse of the basis, the levels and the prices. It returns false if the basis is singular.
func (x *simplex) invertBasis() bool {
	var a [KindsMax][2 * KindsMax]float64

	n := x.kinds
	for i := range n {
		c := x.columnOf(&x.basis[i])
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
	x.solveLevels()
	return true
}

// solveLevels computes levels and prices from the inverse.
func (x *simplex) solveLevels() {
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

// writePrices writes the prices. Rounding may have made some of them slightly negative.
func (x *simplex) writePrices(price []float64) {
	for k := range price {
		price[k] = max(0, x.price[k])
	}
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

// inBasis reports whether a bidder has a column besides its key.
func (x *simplex) inBasis(q int32) bool {
	for i := range x.kinds {
		if x.basis[i].bidder == q {
			return true
		}
	}
	return false
}

// promoteColumn makes a bidder's largest column its key, and returns the column's index, which is now free.
func (x *simplex) promoteColumn(q int32) int {
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
