package plan

import (
	"math"
	"slices"
)

// An estimate gives the simplex method its start: prices near which demand meets capacity. An error in it only costs
// pivots.
//
// The sum of all bidders' gains at given prices plus the capacity's value at these prices is convex in the prices,
// and is least where demand meets capacity. Newton's method finds that minimum. The slope is the unused capacity, and
// bidders near another choice show how quickly demand changes with a price.

const (
	// nearTie is how close, relative to a bidder's value, another choice must be for a change of price to matter.
	nearTie = 0.1
	// logMost bounds the change of a price per step, as a logarithm. A price of zero rises to at most priceFirst, and
	// a price below priceLeast falls to zero. Both are shares of the value of a GPU second of an average answer.
	logMost, priceFirst, priceLeast = 1.0, 0.01, 1e-5
	// estimateNear is the imbalance of demand at which the simplex method is faster.
	estimateNear = 0.02
	// If the imbalance is larger than estimateFar, one bidder of every sampleOf is enough, given at least sampleFrom
	// of them.
	estimateFar, sampleOf, sampleFrom = 0.2, 8, 200

	sampleSteps, wholeSteps = 10, 2
)

// balance describes demand and capacity at some prices.
type balance struct {
	spare [KindsMax]float64           // capacity minus demand, by kind
	bends [KindsMax][KindsMax]float64 // the fall of demand for the first kind as the price of the second rises
	scale float64                     // value of a GPU second of the average chosen answer, over all kinds
	worst float64                     // the largest imbalance of a kind whose price matters, relative to its capacity
}

// estimatePrices improves prices in place, and records the choices of all bidders at them.
func (x *simplex) estimatePrices(price []float64) {
	at := x.balanceAt(price, 1)

	// Far from the balance, a sample of the bidders is as informative as all of them.
	if at.worst > estimateFar {
		every := 1
		if len(x.key) >= sampleFrom {
			every = sampleOf
		}

		if slices.Max(price) == 0 {
			x.startPrices(price, every)
		}

		x.stepTowards(price, x.balanceAt(price, every), every, sampleSteps, estimateFar/2)
		at = x.balanceAt(price, 1)
	}
	x.stepTowards(price, at, 1, wholeSteps, estimateNear)
}

// stepTowards takes up to steps Newton steps, until the imbalance is at most near. It evaluates one bidder in every, as
// balanceAt does.
func (x *simplex) stepTowards(price []float64, at balance, every, steps int, near float64) {
	var step [KindsMax]float64
	for range steps {
		if !(at.worst > near) {
			break
		}

		x.newtonStep(price, &at, &step)
		next := x.balanceAt(price, every)

		// Demand changes in jumps. If the slope after a step is as steep in the other direction, the minimum lies in
		// between.
		before, after := 0.0, 0.0
		for k := range price {
			before -= at.spare[k] * step[k]
			after += next.spare[k] * step[k]
		}
		if after > before/2 && before > 0 {
			back := after / (before + after)
			for k := range price {
				price[k] = max(0, price[k]-back*step[k])
			}
			next = x.balanceAt(price, every)
		}

		at = next
	}
}

// newtonStep moves prices to where it expects demand to meet capacity, and returns the step.
func (x *simplex) newtonStep(price []float64, at *balance, step *[KindsMax]float64) {
	n := len(price)

	// Copy the matrix, because the elimination destroys it.
	a := at.bends
	for k := range n {
		step[k] = -at.spare[k]

		// A small addition to the diagonal keeps the matrix regular if no bidder is near a tie.
		unit := max(price[k], priceLeast*at.scale)
		a[k][k] += 0.05 * max(x.capacity[k], 1e-300) / max(unit, 1e-300)
	}

	// The matrix is symmetric and positive definite, so the elimination needs no pivoting.
	for i := range n {
		for k := i + 1; k < n; k++ {
			f := a[k][i] / a[i][i]
			for c := i; c < n; c++ {
				a[k][c] -= f * a[i][c]
			}
			step[k] -= f * step[i]
		}
	}
	for i := n - 1; i >= 0; i-- {
		for c := i + 1; c < n; c++ {
			step[i] -= a[i][c] * step[c]
		}
		step[i] /= a[i][i]
	}

	// A large step would leave the region that the matrix describes.
	for k := range n {
		low, high := price[k]*math.Exp(-logMost), max(price[k]*math.Exp(logMost), priceFirst*at.scale)
		if low < priceLeast*at.scale {
			low = 0
		}

		next := min(high, max(low, price[k]+step[k]))
		step[k] = next - price[k]
		price[k] = next
	}
}

// balanceAt evaluates the choices of one bidder in every at given prices, as a sample of all. It records the choices,
// and how close to a tie each one is.
func (x *simplex) balanceAt(price []float64, every int) (at balance) {
	copy(x.price[:], price)

	var demand [KindsMax]float64
	value := 0.0
	for q := 0; q < len(x.key); q += every {
		best, second, gap := x.bestTwoOf(q)
		paid := x.largerCost(best, second)
		x.keyItem[q], x.gap[q] = *best, gap/paid
		demand[best.kind] += best.gpus
		value += best.value

		// The closer to a tie, the more likely the next price change makes the other choice better.
		if wide := nearTie * paid; gap < wide {
			likely := (1 - gap/wide) / wide
			from, to := best.kind, second.kind
			at.bends[from][from] += likely * best.gpus * best.gpus
			at.bends[to][to] += likely * second.gpus * second.gpus
			at.bends[from][to] -= likely * best.gpus * second.gpus
			at.bends[to][from] -= likely * best.gpus * second.gpus
		}
	}

	all := 0.0
	for k := range price {
		all += demand[k]
	}
	at.scale = value / max(all, 1e-300)

	for k := range price {
		if x.capacity[k] == 0 {
			continue
		}

		for i := range price {
			at.bends[k][i] *= float64(every)
		}
		at.spare[k] = x.capacity[k] - float64(every)*demand[k]

		// Unused capacity of a kind with price 0 is no imbalance.
		if at.spare[k] < 0 || price[k] > 0 {
			at.worst = max(at.worst, abs(at.spare[k])/x.capacity[k])
		}
	}
	return at
}

// startPrices finds prices for an unknown market by bisection: one level for all kinds, relative to each kind's own
// cost of the average answer.
func (x *simplex) startPrices(price []float64, every int) {
	var gpus, count [KindsMax]float64
	value := 0.0
	for i := range x.items {
		it := &x.items[i]
		gpus[it.kind], count[it.kind], value = gpus[it.kind]+it.gpus, count[it.kind]+1, value+it.value
	}

	for k := range price {
		gpus[k] /= max(1, count[k])
	}
	value /= max(1, float64(len(x.items)))

	// Prices are proportional to the value of an average answer on each kind. Only their level is unknown.
	low, high := math.Log(1e-4), math.Log(1e2)
	for range 12 {
		middle := (low + high) / 2
		for k := range price {
			price[k] = math.Exp(middle) * value / max(gpus[k], 1e-300)
		}

		// The unused capacity at these prices, as one number for all kinds.
		at := x.balanceAt(price, every)
		left := 0.0
		for k := range price {
			left += at.spare[k] * price[k]
		}
		if left < 0 {
			low = middle
		} else {
			high = middle
		}
	}
}
