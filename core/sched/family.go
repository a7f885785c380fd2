package sched

import "math"

// family is what a model has beyond one variant in one sub-cluster: variants that answer alike, some
// better and some faster, on GPUs of several kinds. Which variant answers is decided when a GPU is
// granted (UNIFIED U4); until then the model waits as the variant does that it intends to use where it
// intends to use it (U2).
type family struct {
	part  *Partition
	homes []home
	main  int // the home where the model intends to be served
	// staffed says whether some home has GPUs, asked whether a Ranker of one may know a candidate.
	staffed, asked bool
	// What the tentative schedule says: see places.
	placed  int        // requests that have a place
	pieces  int        // batches that they make up
	way     *execution // how the latest of these executes
	lookAt  Time       // when it must be placed anew at the latest
	round   uint32     // of the schedule
	changed bool       // it is in places.changed
	listed  bool       // it is in places.queued
	small   int        // so many requests are to grow wherever they are answered, see growAlone
	longest Duration   // lead of one more where that takes longest
	steps   steps
	left    leftBehind
}

// home is a sub-cluster that serves a family, with the variants that are resident there and accurate
// enough, the quickest at a batch of one first.
type home struct {
	sub       uint32
	residents []resident
	intended  int     // the resident that the present price asks for
	cheapest  int     // the resident that takes least GPU time per request
	worth     float64 // of a request served here: accuracy less price of its GPU time
	served    float64 // requests in batches, the older ones counting less
	staffed   bool    // it has GPUs
	inUse     bool    // it gets the candidate as soon as it waits; the others when no GPU came in time
	ripe      bool    // its Ranker has been asked for a GPU
	told      uint32  // the size that its Ranker knows, 0: none
	refused   Time    // its GPUs are too late or too slow until then
	starts    int     // requests that are to start there now, 0: none
	from      int     // their place in the queue
}

const (
	// answerValue is ω: an answer is worth three times its accuracy, so that a variant which serves more requests
	// goes before one that serves them better.
	answerValue = 3
	// leftValue is what a request that can still be served by the next batch is worth, as a share of what it would be
	// in this one: it may have to share that batch with what comes until then.
	leftValue = 0.96
	// leastPrice is what a GPU second costs where nothing else wants it: among equal answers the one that takes less
	// GPU time is chosen, and among idle GPUs the faster ones.
	leastPrice = 0.01
	// nearlyBest is by which share of what its GPU time costs a home may be worse than the best one and still be in
	// use: at the right prices a family that needs two kinds of GPUs finds them equally good.
	nearlyBest = 0.05
)

// SetPrice says what a second of a sub-cluster's GPUs is worth, in units of accuracy per request (UNIFIED
// U3): what is not spent on a more accurate answer here could be elsewhere. It holds for all decisions
// from now on; what waits already is looked at when it would have been anyway.
func (p *Partition) SetPrice(subCluster uint32, price float64) {
	if subCluster >= SubClusterLimit || !(price >= 0) {
		return
	}

	for int(subCluster) >= len(p.prices) {
		p.prices = append(p.prices, 0)
	}
	p.prices[subCluster] = price
}

// priceOf returns the price of a GPU second in a sub-cluster.
func (p *Partition) priceOf(sub uint32) float64 {
	if int(sub) >= len(p.prices) {
		return leastPrice
	}

	return max(leastPrice, p.prices[sub])
}

// homeIn returns the home in a sub-cluster, nil where there is none.
func (f *family) homeIn(sub uint32) *home {
	for k := range f.homes {
		if f.homes[k].sub == sub {
			return &f.homes[k]
		}
	}

	return nil
}

// choose decides, at the present rate and prices, which variant is intended in each home, which home is the
// main one, and which others are in use beside it.
func (f *family) choose(m *model) {
	best := -1
	for k := range f.homes {
		h := &f.homes[k]

		// A home without GPUs is best only where none has any.
		h.staffed = f.part.staffed(h.sub)
		h.chooseVariant(m, f.part.priceOf(h.sub))
		if best < 0 || h.staffed && (!f.homes[best].staffed || h.worth > f.homes[best].worth) {
			best = k
		}
	}

	f.main, f.staffed = best, f.homes[best].staffed
	f.boundSmall()
	for k := range f.homes {
		h := &f.homes[k]
		h.inUse = h.staffed && h.worth >= f.homes[best].worth-float64(nearlyBest*f.part.priceOf(h.sub))*h.intention().cost
	}

	// The model plans as its main home does: the paths of plain models read these fields.
	m.execution, m.sub = f.homes[best].intention().execution, f.homes[best].sub
	m.renewSoonest()
}

// boundSmall finds how many requests are fewer than any way to answer is efficient with.
func (f *family) boundSmall() {
	f.small, f.longest = math.MaxInt, 0
	if len(f.homes) == 1 {
		return
	}

	for k := range f.homes {
		for i := range f.homes[k].residents {
			f.small = min(f.small, f.homes[k].residents[i].small)
		}
	}
	for k := range f.homes {
		for i := range f.homes[k].residents {
			f.longest = max(f.longest, f.homes[k].residents[i].lead[f.small+1])
		}
	}
}

// renewSoonest finds the quickest way to answer anew.
func (m *model) renewSoonest() {
	m.soonest = m.lead[1]
	if m.family == nil {
		return
	}

	for k := range m.family.homes {
		if h := &m.family.homes[k]; h.staffed || !m.family.homes[m.family.main].staffed {
			m.soonest = min(m.soonest, h.residents[0].lead[1])
		}
	}
}

// chooseVariant finds what the home's residents cost and which of them is worth most at a price. One that the
// usual request leaves no time for is intended only if all are.
func (h *home) chooseVariant(m *model, price float64) {
	h.intended, h.cheapest = -1, 0
	for i := range h.residents {
		r := &h.residents[i]
		r.target = r.targetAt(m.rate.perNS, m.budget)
		if len(m.family.homes) == 1 {
			r.cost = float64(r.exec[r.target]) / float64(r.target) / 1e9
		} else {
			r.cost = r.plannedCost(m.bidRate()/1e9, m.budget)
			r.small = r.smallBatch()
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
		// No resident is in time, so an answer is worth nothing; the quickest one loses least.
		h.intended, h.worth = 0, -price*h.residents[0].cost
	}
}

// planBudget is the part of its budget that a service with several homes plans with.
const planBudget = 0.9

// bidRate returns the requests/s that a service with several homes plans for; never 0.
func (m *model) bidRate() float64 {
	rate := m.family.steps.long
	if rate == 0 || m.rate.fixed {
		rate = m.rate.perNS * 1e9 // it is known, or nobody has asked for a bid
	}
	if rate == 0 {
		return RateLimit // nothing is known: batches are waited for
	}

	return max(rate, rateLeast)
}

const rateLeast = 0.5

// intention returns the resident that is intended.
func (h *home) intention() *resident { return &h.residents[h.intended] }

// leastDemand is a demand if the home used the variant that takes least GPU time.
func (h *home) leastDemand(demand int64) int64 {
	if h.intended == h.cheapest {
		return demand
	}

	return int64(float64(demand) * h.residents[h.cheapest].cost / h.intention().cost)
}

// countServed notes that requests got a batch in a home.
func (f *family) countServed(h *home, requests int) {
	h.served += float64(requests)
	total := 0.0
	for k := range f.homes {
		total += f.homes[k].served
	}

	// Halved, so that the shares follow what changes.
	if total > sharesMax {
		for k := range f.homes {
			f.homes[k].served /= 2
		}
	}
}

// sharesMax is how many requests tell how a family's load is shared by its homes, at most.
const sharesMax = 1000

// share is the part of the family's requests that a home serves.
func (f *family) share(h *home) float64 {
	total := 0.0
	for k := range f.homes {
		total += f.homes[k].served
	}
	if total > 0 {
		return h.served / total
	}

	// Nothing was served yet: all of it will be served where the family intends to be.
	if h == &f.homes[f.main] {
		return 1
	}

	return 0
}

// formVariant is form for a family: on a GPU of its home it chooses among the variants there (UNIFIED U4). Requests
// are dropped only where the variant that takes least GPU time must drop them to keep up.
func (p *Partition) formVariant(now Time, m *model, h *home, g Grant) bool {
	f := m.family
	p.expire(p.start(now, 1, g.FreeAt).Add(h.residents[0].exec[1]), m)
	if m.q.len() == 0 || g.Early && m.growthUntil(now, m.ripeIn(now, h.intention())) > g.Growth {
		return false // it is still to grow
	}

	// The window slides for the variant of least GPU time: no request is lost to a better answer.
	m.sample()
	skipped, _ := p.pick(now, m, &h.residents[h.cheapest].execution, 0, g.FreeAt, g.Least)
	p.dropHeads(m, skipped)
	r, b := p.bestResident(now, m, h, 0, g.FreeAt)
	if b == 0 {
		return false
	}
	f.countServed(h, b)
	p.emit(now, m, &r.execution, g, 0, b, skipped)
	return true
}
