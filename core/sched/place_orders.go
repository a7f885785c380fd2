package sched

// The order in which services are placed decides which of them get the GPUs that are free. The usual order is by the time at
// which each head, alone, must start. It lets long batches come late: their services find GPUs taken by services with little
// work, which could have waited. So a second schedule is made, in the order in which the services' intended batches must
// start, and the better of both holds (decision 0407).

// tally sums up a tentative schedule.
type tally struct {
	answered int     // requests with a place
	worth    float64 // of their answers, less what their waits cost
	starting int     // batches that start now
	delayed  int     // batches that wait for a GPU
}

const (
	// waitedShare is the cost of a wait as long as a request's SLO, in units of accuracy, when two orders are compared: a
	// request that has waited allows fewer ways to answer it.
	waitedShare = 0.2
	// comparedMax is the largest number of batches in schedules that are compared, which bounds the cost of a comparison.
	comparedMax = 64
)

// tallyPlace adds a batch to the tally.
func (t *tally) tallyPlace(at *place, wait, slo Duration) {
	t.answered += at.size
	t.worth += float64(float64(at.size) * (at.worth - float64(waitedShare*float64(wait)/float64(slo))))
}

// chooseOrder completes the schedule, which was made as far as GPUs are free, and replaces it by the one in the other order if
// that is better. The orders are compared by the whole queues.
func (p *Partition) chooseOrder(now, soon Time) {
	s := p.places
	if s.starting == 0 || !p.placeRest(now, soon) || !p.isContested() {
		return
	}
	usual := s.tally
	p.keepPlaces()

	s.byBatch = true
	p.clearPlaces()
	whole := p.placeRest(now, soon)
	s.byBatch = false

	// A schedule that places fewer requests is not worse for that, nor one that places more better: most requests without a
	// place get one later, when a GPU is free or more requests have come. So only schedules of equally many are compared.
	if !whole || s.tally.answered != usual.answered || s.tally.worth <= usual.worth {
		p.restorePlaces()
	}
}

// comparesOrders reports whether some GPU time has a price: where nothing is scarce, the order matters little.
func (p *Partition) comparesOrders() bool {
	for k := range p.places.outlooks {
		if p.priceOf(uint32(k)) > 2*leastPrice {
			return true
		}
	}
	return false
}

// isContested reports whether a batch starts now and other requests wait for a GPU. Otherwise both orders decide the same.
func (p *Partition) isContested() bool {
	s := p.places
	if s.starting == 0 {
		return false
	}
	if s.delayed > 0 {
		return true
	}

	for _, at := range s.set {
		if m := &p.models[at]; m.family.placed < m.q.len() {
			return true
		}
	}
	return false
}

// placeRest places all requests that have no place yet. It returns false if they need too many batches.
func (p *Partition) placeRest(now, soon Time) bool {
	for range comparedMax {
		if !p.placeFirst(now, soon) {
			return true
		}
	}
	return false
}

// keptPlaces is a service's part of a tentative schedule that may be restored.
type keptPlaces struct {
	placed, pieces int
	way            *execution
	lookAt         Time
	left           leftBehind
}

// keptStart is the same of one of its homes.
type keptStart struct{ starts, from int }

// keepPlaces stores the schedule.
func (p *Partition) keepPlaces() {
	s := p.places
	copy(s.keptFree, s.free)
	for _, at := range s.set {
		f := p.models[at].family
		f.kept = keptPlaces{f.placed, f.pieces, f.way, f.lookAt, f.left}
		for k := range f.homes {
			h := &f.homes[k]
			h.kept = keptStart{h.starts, h.from}
		}
	}
}

// clearPlaces takes all places back.
func (p *Partition) clearPlaces() {
	s := p.places
	copy(s.free, s.outlooks)
	s.order, s.tally = s.order[:0], tally{}
	for _, at := range s.set {
		p.models[at].family.clearPlaces()
	}
}

// restorePlaces brings the stored schedule back.
func (p *Partition) restorePlaces() {
	s := p.places
	copy(s.free, s.keptFree)
	for _, at := range s.set {
		f := p.models[at].family
		f.placed, f.pieces, f.way, f.lookAt, f.left = f.kept.placed, f.kept.pieces, f.kept.way, f.kept.lookAt, f.kept.left
		for k := range f.homes {
			h := &f.homes[k]
			h.starts, h.from = h.kept.starts, h.kept.from
		}
	}
}
