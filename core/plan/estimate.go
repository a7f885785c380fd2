package plan

import "math"

// estimate finds where the simplex method starts: prices near which demand meets capacity. It need
// not be right; every per cent that it is off costs pivots and nothing else. It takes Newton steps in the
// logarithms of prices and demands, with a matrix of elasticities that is measured once and
// afterwards corrected by what each step did (Broyden 1965). The matrix outlives a plan, so a renewal
// looks at demand three or four times.
type estimate struct {
	elasticity [KindsMax][KindsMax]float64 // d log demand / d log price
	known      int                         // the number of kinds that it was measured for
}

const (
	// logMost bounds a step: prices change by a third at most.
	logMost = 0.3
	// estimateNear is the imbalance of demand at which the simplex method is faster.
	estimateNear = 0.002
)

// find improves prices in place.
func (e *estimate) find(x *simplex, price []float64) {
	steps := 6
	if e.known != x.kinds || !e.usable(x, price) {
		x.startPrices(price)
		e.measure(x, price)
		steps = 10
	}

	// Each step teaches the matrix something, so the next one is better even where the first goes wrong.
	at := x.imbalanceAt(price)
	for range steps {
		step := e.newtonStep(x.kinds, at)
		for k := range price {
			price[k] *= math.Exp(step[k])
		}
		next := x.imbalanceAt(price)
		e.correct(x.kinds, step, at, next)
		at = next

		worst := 0.0
		for k := range price {
			worst = max(worst, abs(at[k]))
		}
		if worst < estimateNear {
			return
		}
	}
}

// usable reports whether prices of an earlier plan are a place to start from.
func (e *estimate) usable(x *simplex, price []float64) bool {
	for k := range price {
		if price[k] <= 0 && x.capacity[k] > 0 {
			return false
		}
	}
	return true
}

// measure fills the matrix by raising one price after another.
func (e *estimate) measure(x *simplex, price []float64) {
	const rise = 0.06
	e.known = x.kinds

	base := x.imbalanceAt(price)
	for k := range price {
		before := price[k]
		price[k] *= math.Exp(rise)
		raised := x.imbalanceAt(price)
		price[k] = before
		for i := range price {
			e.elasticity[i][k] = (raised[i] - base[i]) / rise
		}
		e.elasticity[k][k] = min(e.elasticity[k][k], -0.3) // demand falls with its own price
	}
}

// newtonStep solves elasticity·step = −imbalance, each step within its bound.
func (e *estimate) newtonStep(kinds int, imbalance [KindsMax]float64) (step [KindsMax]float64) {
	// The matrix is copied: elimination destroys it, and the next step wants it whole.
	a := e.elasticity
	for k := range kinds {
		step[k] = -imbalance[k]
	}

	for i := range kinds {
		pivot := i
		for k := i + 1; k < kinds; k++ {
			if abs(a[k][i]) > abs(a[pivot][i]) {
				pivot = k
			}
		}
		a[i], a[pivot] = a[pivot], a[i]
		step[i], step[pivot] = step[pivot], step[i]
		if abs(a[i][i]) < 1e-6 {
			a[i][i] = -1
		}

		for k := range kinds {
			if k == i {
				continue
			}
			f := a[k][i] / a[i][i]
			for c := i; c < kinds; c++ {
				a[k][c] -= f * a[i][c]
			}
			step[k] -= f * step[i]
		}
	}

	// A large step would leave the region that the matrix describes.
	for k := range kinds {
		step[k] = min(logMost, max(-logMost, step[k]/a[k][k]))
	}
	return step
}

// correct makes the matrix explain what the last step did.
func (e *estimate) correct(kinds int, step, before, after [KindsMax]float64) {
	length := 0.0
	for k := range kinds {
		length += step[k] * step[k]
	}
	if length < 1e-5 {
		return // too short to tell an elasticity from the bidders' steps
	}

	// Half of the correction that would explain the step: bidders change in jumps, and one step may be
	// an accident.
	for i := range kinds {
		expected := 0.0
		for k := range kinds {
			expected += e.elasticity[i][k] * step[k]
		}
		for k := range kinds {
			e.elasticity[i][k] += 0.5 * (after[i] - before[i] - expected) * step[k] / length
		}
	}
}

// imbalanceAt is the logarithm of demand over capacity of each kind, within ±1.
func (x *simplex) imbalanceAt(price []float64) (imbalance [KindsMax]float64) {
	copy(x.price[:], price)

	var demand [KindsMax]float64
	for q := range x.key {
		it := x.bestAt(q, &x.price)
		demand[it.kind] += it.gpus
	}

	for k := range price {
		if x.capacity[k] > 0 {
			imbalance[k] = min(1, max(-1, math.Log(max(demand[k], 1e-300)/x.capacity[k])))
		}
	}
	return imbalance
}

// startPrices finds prices for a market of which nothing is known: one level for all kinds, beside
// the kinds' own costs of the average answer, by bisection.
func (x *simplex) startPrices(price []float64) {
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

	// Prices in proportion to what an average answer is worth on each kind; only their level is unknown.
	low, high := math.Log(1e-4), math.Log(1e2)
	for range 20 {
		level := math.Exp((low + high) / 2)
		for k := range price {
			price[k] = level * value / max(gpus[k], 1e-300)
		}

		copy(x.price[:], price)

		used := 0.0 // of the first kind's GPUs, as the kinds' speeds go
		for q := range x.key {
			it := x.bestAt(q, &x.price)
			used += it.gpus * price[it.kind]
		}

		worth := 0.0
		for k := range price {
			worth += x.capacity[k] * price[k]
		}

		// Worth of what is asked for against worth of what there is: one number for all kinds.
		if used > worth {
			low = math.Log(level)
		} else {
			high = math.Log(level)
		}
	}
}
