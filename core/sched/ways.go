package sched

import "math"

// place is a home with a GPU for a service's next requests, and the way to answer them there.
type place struct {
	home  *home
	way   *resident // nil: no place
	size  int
	worth float64 // of an answer
}

// bestPlace finds the home with the best answer to a service's next unplaced requests.
func (p *Partition) bestPlace(now Time, m *model) place {
	f := m.family
	best, last := place{worth: math.Inf(-1)}, place{worth: math.Inf(-1)}
	for k := range f.homes {
		h := &f.homes[k]
		if int(h.sub) >= len(p.places.free) {
			continue
		}
		if h.refused > now {
			f.lookAt = min(f.lookAt, h.refused)
			continue
		}

		// If no GPU is in sight there is no place, whatever the variants.
		o := &p.places.free[h.sub]
		if o.N == 0 {
			continue
		}
		h.patience = p.longestBatch(now, m, h, o)
		r, b, worth := p.bestWay(now, m, h, f.placed, o.Free[0], best.worth, true)
		if r == nil {
			continue
		}

		// GPUs that the plan leaves to other services are only for requests that no other home answers in time, or as
		// accurately.
		if found := (place{h, r, b, worth}); p.mayTake(now, f, &found, o) {
			best = found
		} else if worth > last.worth {
			last = found
		}
	}
	if best.way == nil || last.way != nil && last.worth > best.worth && last.way.accuracy > best.way.accuracy {
		return last
	}
	return best
}

// bestWay returns the resident of a home that best answers the requests from place first on, on a GPU that is free at
// freeAt, with the number of requests and the value of an answer; nil: none has more value than known. If the batch may
// grow, its value is the one that it grows to, if that is greater (decision 0411).
func (p *Partition) bestWay(now Time, m *model, h *home, first int, freeAt Time, known float64, grows bool) (best *resident, size int, most float64) {
	most = known
	cost := p.costIn(h.sub)
	wait := max(0, freeAt.Sub(now))

	// The slowest are mostly the most accurate. No answer is worth more than its accuracy, so most of the others are
	// not even read.
	canWin := func(accuracy float64) bool { return accuracy >= most && (best != nil || accuracy > known) }
	for i, below := len(h.residents)-1, math.Inf(1); i >= 0 && canWin(below); i-- {
		r := &h.residents[i]
		below = r.below
		if !canWin(r.accuracy) {
			continue
		}
		b := r.trimmed(p.largestBatch(now, m, &r.execution, first, freeAt))
		if b == 0 || r.exec[b] > h.patience || !p.keepsUp(m, h, i, first, b) {
			continue
		}

		// Where nothing is scarce, a free GPU is better than a batch to wait for.
		worth := cost.worth(r, b, wait)
		if grows && cost.perSecond == 0 {
			if g, gather := p.grown(now, m, r, first, b); g > b {
				// The batch's last request waits for nothing, its first for all of the others.
				worth = max(worth, cost.worth(r, g, max(wait, gather/2)))
			}
		}

		// Among equals the quickest wins.
		if worth > most || best != nil && worth == most {
			best, size, most = r, b, worth
		}
	}

	return best, size, most
}

// wayCost is what GPU time and waiting cost in a home.
type wayCost struct {
	price     price
	perSecond float64 // of execution, in addition
}

// costIn returns the costs in a sub-cluster.
func (p *Partition) costIn(sub uint32) wayCost {
	c := wayCost{price: p.priceIn(sub)}
	if c.price.now <= 2*leastPrice {
		c.perSecond = execPrice
	}
	return c
}

// worth returns the value of an answer in a batch of b that waits: its accuracy less what its GPU time and the wait cost.
func (c *wayCost) worth(r *resident, b int, wait Duration) float64 {
	// Round term by term: processors with a fused multiply-add would otherwise decide differently.
	exec := float64(r.exec[b])
	gpu := float64(c.price.over(r.exec[b]) * float64(exec/float64(1e9*float64(b))))
	return r.accuracy - gpu - float64(float64(waitPrice*float64(wait))+float64(c.perSecond*exec))/1e9
}

// grown returns the size that a batch of all requests from place first on grows to if it waits, b of them now, and the time
// until the last one is expected; b if the batch should not wait.
func (p *Partition) grown(now Time, m *model, r *resident, first, b int) (size int, gather Duration) {
	if b >= int(r.growsTo) || !p.mayGrow(m, r, first, b) {
		return b, 0
	}

	gap := 1e9 / m.bidRate()
	left := float64(m.q.at(first).Deadline.Sub(now) - m.margin)
	size = largestFit(int(r.growsTo), int(r.growsTo), func(n int) bool {
		return n <= b || float64(float64(n-b)*gap)+float64(r.lead[n]) <= left
	})
	if size = r.trimmed(size); size <= b {
		return b, 0
	}
	return size, Duration(float64(size-b) * gap)
}

// mayGrow reports whether a batch of b from place first on can use another request: it takes all that are queued, and is neither
// as large as possible nor as cheap as planned.
func (p *Partition) mayGrow(m *model, r *resident, first, b int) bool {
	return b != int(r.max) && first+b >= m.q.len() && !r.efficient(b) && m.load >= p.o.Prompt
}

// placeRipe returns until when waiting for one more request is free and worthwhile, minus the margin (see adjustMargin): 0
// if the batch is as large as possible, cannot use another request, or is as cheap as planned.
func (p *Partition) placeRipe(m *model, r *resident, b int) Time {
	placed := m.family.placed
	if !p.mayGrow(m, r, placed, b) {
		return 0
	}

	return m.q.at(placed).Deadline - Time(r.lead[b+1]+m.margin)
}
