package plan

import "slices"

// Renew decides what every bidder gets and what GPU time costs (UNIFIED U3). It maximises Σ rate·share·(ω + accuracy)
// over shares of offers, so that no kind provides more GPU time than it has. Because every GPU may run every resident
// variant, this is a linear program and not an integer one, and its duals are the prices. Each bidder takes the offer
// with the largest ω + accuracy − price·cost, and at most one bidder for each kind is split between offers.
//
// The search starts at p's last prices. An error leaves p unchanged.
func (p *Prices) Renew(m *Market) error {
	if err := m.validate(); err != nil {
		return err
	}

	kinds := len(m.Capacity)
	if len(p.Price) != kinds {
		p.Price = resize(p.Price, kinds)
		clear(p.Price)
	}

	// Start near the optimum, then find the exact one.
	x := &p.x
	x.readMarket(m)
	x.estimatePrices(p.Price)
	x.startAtChoices()
	p.Pivots = x.pivotToOptimum()

	// The results for readers: choices, prices that mean something for every kind, and the scale of the prices.
	x.writePrices(p.Price)
	p.priceMissingKinds(m)
	p.readChoices(m)
	return nil
}

// priceMissingKinds gives a kind without GPUs the lowest price that nobody pays, so that choices by price avoid it.
func (p *Prices) priceMissingKinds(m *Market) {
	for k, c := range m.Capacity {
		if c > 0 {
			continue
		}

		p.Price[k] = 0
		for q := range m.Bidders {
			for j := range m.Bidders[q].Offers {
				if o := &m.Bidders[q].Offers[j]; int(o.Kind) == k {
					p.Price[k] = max(p.Price[k], (m.Value+o.Accuracy)/o.Cost)
				}
			}
		}
	}
}

// resize returns s with n elements; existing ones keep their values.
func resize[T any](s []T, n int) []T {
	return slices.Grow(s[:0], n)[:n]
}

// readChoices turns shares into main offers and splits, and adds up their results.
func (p *Prices) readChoices(m *Market) {
	x := &p.x

	p.Main = append(p.Main[:0], x.key...)
	p.Demand = resize(p.Demand, len(m.Capacity))
	clear(p.Demand)
	p.Splits = p.Splits[:0]
	p.Served, p.Accuracy, p.Value = 0, 0, 0

	// Columns of the basis at level 0 are degenerate: they split nobody.
	for i := range x.kinds {
		b := x.basis[i]
		const nothing = 1e-9
		if b.bidder != Nowhere && x.level[i] > nothing {
			p.Splits = append(p.Splits, Split{b.bidder, b.offer, min(1, x.level[i])})
		}
	}

	for q := range m.Bidders {
		if b := &m.Bidders[q]; b.Rate == 0 {
			p.Main[q] = b.Choose(p.Price, m.Value) // there are no requests; the next one gets this offer
			continue
		}

		// The main offer gets the share that the splits leave.
		rest := 1.0
		for i := range p.Splits {
			if s := &p.Splits[i]; int(s.Bidder) == q {
				rest -= s.Share
				p.addShare(m, q, s.Offer, s.Share)
			}
		}
		p.addShare(m, q, p.Main[q], max(0, rest))
	}

	if p.Served > 0 {
		p.Accuracy /= p.Served
	}

	// Weak duality: the gains of all bidders at these prices plus the value of the capacity.
	copy(x.price[:], p.Price)
	p.Bound = 0
	for q := range m.Bidders {
		it := x.bestAt(q, &x.price)
		p.Bound += it.value - x.price[it.kind]*it.gpus
	}
	for k, c := range m.Capacity {
		p.Bound += p.Price[k] * c
	}
}

func (p *Prices) addShare(m *Market, q int, offer int32, share float64) {
	if offer == NotServed {
		return
	}

	b := &m.Bidders[q]
	o := &b.Offers[offer]
	rate := b.Rate * share
	p.Demand[o.Kind] += rate * o.Cost
	p.Served += rate
	p.Accuracy += rate * o.Accuracy
	p.Value += rate * (m.Value + o.Accuracy)
}
