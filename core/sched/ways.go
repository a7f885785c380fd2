package sched

import "math"

// place is a home with a GPU for a service's next requests, and how they are answered there.
type place struct {
	home  *home
	way   *resident // nil: there is none
	size  int
	worth float64 // of an answer
}

// bestPlace finds the home where a service's next requests that have no place are answered best.
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

		// Without a GPU in sight there is no place, whatever the variants.
		o := &p.places.free[h.sub]
		if o.N == 0 {
			continue
		}
		r, b, worth := p.bestWay(now, m, h, f.placed, o.Free[0], best.worth)
		if r == nil {
			continue
		}

		// What the plan leaves to others is for those alone whom nobody else answers in time, or as accurately.
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

// bestWay returns the resident of a home that answers the requests from place first on best on a GPU that is free at a time, how
// many, and what an answer is worth; nil: none is worth more than known.
func (p *Partition) bestWay(now Time, m *model, h *home, first int, freeAt Time, known float64) (best *resident, size int, most float64) {
	most = known
	price, hurry := p.priceOf(h.sub), 0.0
	if price <= 2*leastPrice {
		hurry = execPrice
	}

	// The slowest are mostly the most accurate: nothing is worth more than its accuracy, so that most of the others need no look.
	for i := len(h.residents) - 1; i >= 0; i-- {
		r := &h.residents[i]
		if r.accuracy < most || best == nil && r.accuracy <= known {
			continue
		}
		b := p.fit(now, m, &r.execution, first, freeAt)
		if b == 0 || !p.keepsUp(m, h, i, first, b) {
			continue
		}

		// Rounded term by term, or processors that multiply and add in one step would decide otherwise. Among equals the quickest counts.
		worth := r.accuracy - float64(price*float64(float64(r.exec[b])/float64(1e9*float64(b)))) -
			float64(waitPrice*float64(max(0, freeAt.Sub(now)))+hurry*float64(r.exec[b]))/1e9
		if worth > most || best != nil && worth == most {
			best, size, most = r, b, worth
		}
	}

	return best, size, most
}

// placeRipe returns until when waiting for one request more is free and worth it, or the margin before (see hurry): 0 if the batch is as large as it can be, cannot
// use another, or is as cheap as planned.
func (p *Partition) placeRipe(m *model, r *resident, b int) Time {
	placed := m.family.placed
	if b == int(r.max) || placed+b < m.q.len() || r.efficient(b) || m.load < p.o.Prompt {
		return 0
	}

	return m.q.at(placed).Deadline - Time(r.lead[b+1]+m.margin)
}
