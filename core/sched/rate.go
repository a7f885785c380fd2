package sched

// rate estimates a model's arrival rate λ online; the target batch and the demand follow from it. The estimate is an
// exponential average with time constant rateSpan, and the plain average until that much time has passed.
type rate struct {
	since  Time // start of the estimate
	at     Time // latest update
	perNS  float64
	fixed  bool  // the rate was given
	demand int64 // λ·ℓ(T)/T in millionths of a GPU
}

const (
	rateSpan   Duration = 2_000_000_000
	rateStep   Duration = 50_000_000    // the shortest time between updates
	decayAfter Duration = 1_000_000_000 // the interval of checks of a model without requests
)

func (r *rate) start(now Time, m *model, perSecond float64) {
	*r = rate{since: now, at: now, perNS: perSecond / 1e9, fixed: perSecond > 0}
	r.derive(m)
}

// update adds the arrivals since the last update if rateStep has passed, and returns whether it has.
func (r *rate) update(now Time, m *model) bool {
	dt := now.Sub(r.at)
	if dt < rateStep {
		return false
	}
	if !r.fixed {
		// Until rateSpan has passed, the plain average has the larger weight.
		w := max(float64(dt)/float64(rateSpan+dt), float64(dt)/float64(max(1, now.Sub(r.since))))
		r.perNS += w * (float64(m.q.came())/float64(dt) - r.perNS)
	}
	if m.family != nil {
		m.family.rateSteps.folded += m.q.came()
	}
	m.q.since, r.at = m.q.head+uint32(m.q.n), now
	r.derive(m)
	return true
}

// derive updates what follows from the rate: target batch, demand and pace; for a family also the intended variant.
func (r *rate) derive(m *model) {
	if m.family != nil {
		m.family.chooseHomes(m)
	} else {
		m.target = m.targetAt(r.perNS, m.budget)
	}

	r.demand = int64(r.perNS * float64(m.exec[m.target]) / float64(m.target) * 1e6)
	m.pace = m.gaps.pace(r.perNS, m.worth(m.target))
}

// sampleBudget updates the usual budget of requests on arrival. It is shorter than the SLO by the time spent on the way,
// and a target batch that needs the whole SLO would never be reached. The last request of the queue, which must not be
// empty, counts as the latest arrival.
func (m *model) sampleBudget() {
	left := min(m.q.last.Sub(m.last), m.slo)
	m.budget = max(m.soonest, m.budget+(left-m.budget)/budgetShare)
}

// budgetShare is the divisor of a sample's difference in the average budget.
const budgetShare = 8

// targetAt returns T: the largest b with (b−1)/λ + ℓ(b) + delay(b) ≤ the usual budget, at least 1.
func (x *execution) targetAt(perNS float64, budget Duration) int {
	if perNS <= 0 {
		return 1
	}

	return largestFit(x.target, int(x.max), func(b int) bool { return float64(b-1)/perNS+float64(x.lead[b]) <= float64(budget) })
}

// largestFit returns the largest number from 1 to most that fits, and 1 if none does. If a number does not fit, no larger one
// may. The search starts at a guess, because most answers are the same as before.
func largestFit(guess, most int, fits func(n int) bool) int {
	low, high := 1, most
	if 1 <= guess && guess <= most && (guess == 1 || fits(guess)) {
		if guess == most || !fits(guess+1) {
			return guess
		}
		low = guess + 1
	}

	for low < high {
		if n := (low + high + 1) / 2; fits(n) {
			low = n
		} else {
			high = n - 1
		}
	}
	return low
}
