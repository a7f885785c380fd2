package sched

// Bid is a service's current demand for GPU time: the rate of its requests, and the ways to answer one. Prices are
// computed from all services' bids (core/plan) and set by SetPrice.
type Bid struct {
	Rate   float64 // requests/s
	Recent float64 // the same over the last tenth of a second only: see Stepped
	Latest float64 // the same over the last fortieth of a second only
	Queued int     // requests
	Offers []Offer
}

// Offer is one way to answer a request: a variant in a home.
type Offer struct {
	SubCluster uint32
	Variant    uint16
	Accuracy   float64 // 0…1
	Cost       float64 // GPU seconds per request, in batches of the size that the rate and the budget allow
}

// DemandOf returns one service's part of Load.Demand, in GPUs.
func (r *Ranker) DemandOf(id ModelID) float64 {
	if int(id) >= len(r.rivals) {
		return 0
	}

	return float64(r.rivals[id].demand) / 1e6
}

// RateOf returns a service's estimated arrival rate in requests per second; 0 for an unknown service.
func (p *Partition) RateOf(id ModelID) float64 {
	if m, _ := p.find(id); m != nil {
		return m.rate.perNS * 1e9
	}

	return 0
}

// Bid fills in a service's bid; false for an unknown service. Homes without GPUs offer nothing, and of the variants
// that are too slow for the usual budget only the quickest counts. It reuses the memory of b.Offers.
func (p *Partition) Bid(now Time, id ModelID, b *Bid) bool {
	now = p.clock(now)
	m, _ := p.find(id)
	if m == nil {
		return false
	}

	b.Rate, b.Offers, b.Queued = m.rate.perNS*1e9, b.Offers[:0], m.q.len()
	b.Recent, b.Latest = b.Rate, b.Rate
	if m.family == nil {
		if p.hasGPUs(m.sub) {
			cost := float64(m.exec[m.target]) / float64(m.target) / 1e9
			b.Offers = append(b.Offers, Offer{SubCluster: m.sub, Variant: m.variant, Cost: cost})
		}
		return true
	}

	// Bid current rates, and choose variants by the same rates.
	if !m.rate.fixed {
		x := &m.family.rateSteps
		x.update(now, x.folded+m.q.came())
		if Stepped(x.short, x.long) {
			x.jump(x.short)
		}
		b.Rate, b.Recent, b.Latest = x.long, x.short, x.latest
	}
	m.family.chooseHomes(m)

	for k := range m.family.homes {
		h := &m.family.homes[k]
		for i := range h.residents {
			if r := &h.residents[i]; h.hasGPUs && (r.lead[1] <= m.budget || i == 0) {
				b.Offers = append(b.Offers, Offer{h.sub, r.variant, r.accuracy, r.cost})
			}
		}
	}

	return true
}

// ScaleRates multiplies the bid rates of services with a choice, after a step of demand in all of them. It scales those
// among the n services from place from on, and returns whether there are more.
func (p *Partition) ScaleRates(by float64, from, n int) (more bool) {
	end := min(from+n, len(p.models))
	for i := from; i < end; i++ {
		if m := &p.models[i]; m.live && m.family != nil {
			m.family.rateSteps.scale(by)
		}
	}
	return end < len(p.models)
}
