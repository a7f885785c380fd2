package sched

import "math"

// family is the part of a model that has several variants or several sub-clusters: variants answer the same requests,
// some more accurately and some faster, on GPUs of several kinds. The variant is chosen when a GPU is granted (UNIFIED
// U4). Until then the model defers like its intended variant in its main home (U2).
type family struct {
	part    *Partition
	homes   []home
	main    int  // the home that the model plans to be served in
	hasGPUs bool // some home has GPUs
	asked   bool // the Ranker of some home may know a candidate

	// The size of the first check that was skipped, 0: none; see skipChecks.
	skipped int

	// The tentative schedule; see places.
	placed    int        // requests with a place
	pieces    int        // batches of these
	way       *execution // execution of the latest of these
	lookAt    Time       // the latest time to place the model anew
	round     uint32     // number of the schedule
	changed   bool       // in places.changed
	listed    bool       // in places.queued
	small     int        // up to this number, requests wait for more in any home; see waitUnplaced
	longest   Duration   // the longest lead of small + 1
	rateSteps rateSteps
	left      leftBehind
	kept      keptPlaces
}

// home is a sub-cluster that serves a family, with its resident variants that are accurate enough, in order of ℓ(1).
type home struct {
	// The fields that every schedule reads come first.
	sub       uint32
	told      uint32 // the candidate's size as its Ranker knows it, 0: none
	residents []resident
	refused   Time     // until then its GPUs are too late or too slow
	patience  Duration // how long its next batch may take, see longestBatch
	starts    int      // requests that start here now, 0: none
	from      int      // their place in the queue
	hasGPUs   bool     // it has GPUs
	inUse     bool     // it gets the candidate at once; other homes only when no GPU came in time
	ripe      bool     // a GPU was requested from its Ranker

	intended  int     // the best resident at the current price
	cheapest  int     // the resident with the least GPU time per request
	cost      float64 // of the intended resident per request, in GPU seconds
	costLeast float64 // the same of the cheapest
	worth     float64 // of a request served here: accuracy minus the price of its GPU time
	served    float64 // requests in batches, older ones with less weight
	kept      keptStart
}

const (
	// answerValue is ω: with a value this far above any accuracy, serving more requests comes before serving them more
	// accurately.
	answerValue = 3
	// leftValue is the value of a request that the next batch can still serve, relative to its value in this batch: it
	// may have to compete with later arrivals for a place.
	leftValue = 0.96
	// nearlyBest is the share of the price of its GPU time by which a home may be worse than the best one and still be
	// in use: at the right prices a family that needs two kinds of GPUs finds both equally good.
	nearlyBest = 0.05
)

// homeIn returns the home in a sub-cluster; nil if there is none.
func (f *family) homeIn(sub uint32) *home {
	for k := range f.homes {
		if f.homes[k].sub == sub {
			return &f.homes[k]
		}
	}

	return nil
}

// chooseHomes chooses, at the current rate and prices, the intended variant of each home, the main home, and the other
// homes in use.
func (f *family) chooseHomes(m *model) {
	best := -1
	for k := range f.homes {
		h := &f.homes[k]

		// A home without GPUs is the best one only if no home has any.
		h.hasGPUs = f.part.hasGPUs(h.sub)
		h.chooseVariant(m, f.part.priceOf(h.sub))
		if best < 0 || h.hasGPUs && (!f.homes[best].hasGPUs || h.worth > f.homes[best].worth) {
			best = k
		}
	}

	f.main, f.hasGPUs = best, f.homes[best].hasGPUs
	f.boundSmall()
	for k := range f.homes {
		h := &f.homes[k]
		h.inUse = h.hasGPUs && h.worth >= f.homes[best].worth-float64(nearlyBest*f.part.priceOf(h.sub))*h.intention().cost
	}

	// The code for plain models reads these fields, so the model plans like its main home.
	m.execution, m.sub = f.homes[best].intention().execution, f.homes[best].sub
	m.renewSoonest()
}

// boundSmall finds the number of requests up to which no resident of any home is efficient.
func (f *family) boundSmall() {
	f.small, f.longest = math.MaxInt, 0
	if len(f.homes) == 1 {
		return
	}

	for k := range f.homes {
		for i := range f.homes[k].residents {
			f.small = min(f.small, f.homes[k].residents[i].small())
		}
	}
	for k := range f.homes {
		for i := range f.homes[k].residents {
			f.longest = max(f.longest, f.homes[k].residents[i].lead[f.small+1])
		}
	}
}

// renewSoonest updates the shortest time to an answer.
func (m *model) renewSoonest() {
	m.soonest = m.lead[1]
	if m.family == nil {
		return
	}

	for k := range m.family.homes {
		if h := &m.family.homes[k]; h.hasGPUs || !m.family.homes[m.family.main].hasGPUs {
			m.soonest = min(m.soonest, h.residents[0].lead[1])
		}
	}
}

// chooseVariant computes the GPU time per request of the home's residents, and the one that is worth most at a price. A
// resident that is too slow for the usual budget is intended only if all are.
func (h *home) chooseVariant(m *model, price float64) {
	h.intended, h.cheapest = -1, 0
	for i := range h.residents {
		r := &h.residents[i]
		r.target = r.targetAt(m.rate.perNS, m.budget)
		if len(m.family.homes) == 1 {
			r.cost = float64(r.exec[r.target]) / float64(r.target) / 1e9
		} else {
			r.planBatch(m.bidRate()/1e9, m.budget)
		}
		if r.cost < h.residents[h.cheapest].cost {
			h.cheapest = i
		}

		worth := r.accuracy - float64(price*r.cost)
		if r.lead[1] <= m.budget && (h.intended < 0 || worth > h.worth) {
			h.intended, h.worth = i, worth
		}
	}
	if h.intended < 0 {
		// No resident answers in time, so an answer is worth nothing; the quickest loses least.
		h.intended, h.worth = 0, -price*h.residents[0].cost
	}

	// Copied here so that an offer reads no resident.
	h.cost, h.costLeast = h.residents[h.intended].cost, h.residents[h.cheapest].cost
}

const (
	// planBudget is the share of the budget that a service with several homes plans with.
	planBudget = 0.9
	// growBudget is the share of the budget within which a batch that is waited for gathers and runs. Requests often come
	// faster than in the mean, and a wait that is in vain costs little (decision 0413).
	growBudget = 1.1
)

// bidRate returns the rate in requests/s that a service with several homes plans for; never 0.
func (m *model) bidRate() float64 {
	rate := m.family.rateSteps.long
	if rate == 0 || m.rate.fixed {
		rate = m.rate.perNS * 1e9 // the rate is given, or no bid was requested yet
	}
	if rate == 0 {
		return RateLimit // unknown: assume full batches
	}

	return max(rate, rateLeast)
}

// rateLeast is the smallest rate to plan for, in requests/s.
const rateLeast = 0.5

// intention returns the intended resident.
func (h *home) intention() *resident { return &h.residents[h.intended] }

// leastDemand returns what a demand would be with the home's cheapest variant.
func (h *home) leastDemand(demand int64) int64 {
	if h.intended == h.cheapest {
		return demand
	}

	return int64(float64(demand) * h.costLeast / h.cost)
}

// countServed records that requests got a batch in a home.
func (f *family) countServed(h *home, requests int) {
	h.served += float64(requests)
	total := 0.0
	for k := range f.homes {
		total += f.homes[k].served
	}

	// Halve the counts, so that the shares follow changes.
	if total > sharesMax {
		for k := range f.homes {
			f.homes[k].served /= 2
		}
	}
}

// sharesMax is the number of requests, at most, that determine how a family's load is split among its homes.
const sharesMax = 1000

// share returns the share of the family's requests that a home serves.
func (f *family) share(h *home) float64 {
	total := 0.0
	for k := range f.homes {
		total += f.homes[k].served
	}
	if total > 0 {
		return h.served / total
	}

	// Nothing was served yet: assume that the main home serves everything.
	if h == &f.homes[f.main] {
		return 1
	}

	return 0
}

// formVariant is formPlain for a family: on a GPU of its home it chooses among the variants there (UNIFIED U4). Requests
// are dropped only if even the cheapest variant must drop them to keep up.
func (p *Partition) formVariant(now Time, m *model, h *home, g Grant) bool {
	f := m.family
	p.dropExpired(p.startTime(now, 1, g.FreeAt).Add(h.residents[0].exec[1]), m)
	if m.q.len() == 0 || g.Early && m.growthUntil(now, m.ripeIn(now, h.intention())) > g.Growth {
		return false // the batch is still expected to grow
	}

	// The cheapest variant decides how far the window slides, so no request is lost for a better answer.
	m.sampleBudget()
	skipped, _ := p.pickBatch(now, m, &h.residents[h.cheapest].execution, 0, g.FreeAt, g.Least)
	p.dropHeads(m, skipped)
	r, b := p.bestResident(now, m, h, 0, g.FreeAt)
	if b == 0 {
		return false
	}
	f.countServed(h, b)
	p.emitBatch(now, m, &r.execution, g, 0, b, skipped)
	return true
}
