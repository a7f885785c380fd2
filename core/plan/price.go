package plan

import "slices"

// Renew decides what every bidder gets and what GPU time costs (UNIFIED U3): it maximises
// Σ rate·share·(ω + accuracy) over shares of offers, so that no kind gives more GPU time than it has.
// When every GPU may run every resident variant that is a linear program, not an integer one, and its
// duals are the prices: each bidder takes the offer with the largest ω + accuracy − price·cost, and at
// most one bidder for each kind is split between offers.
//
// p's last prices are where the search starts. An error leaves p as it was.
func (p *Prices) Renew(m *Market) error {
	if err := m.validate(); err != nil {
		return err
	}

	kinds := len(m.Capacity)
	if len(p.Price) != kinds {
		p.Price = resize(p.Price, kinds)
		clear(p.Price)
	}

	// A start near the optimum, then the exact one.
	x := &p.x
	x.reset(m)
	p.estimate.find(x, p.Price)
	x.chooseAt(p.Price)
	p.Pivots = x.pivotToOptimum()

	// What others read: prices that mean something for every kind, choices, and the price's scale.
	x.duals(p.Price)
	p.priceOut(m)
	p.readChoices(m)
	p.readSlopes(m)
	return nil
}

// priceOut gives a kind that is gone the lowest price that nobody pays, so that whoever chooses by price
// leaves it alone.
func (p *Prices) priceOut(m *Market) {
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

// resize returns s with n elements, of which the old ones keep their values.
func resize[T any](s []T, n int) []T {
	return slices.Grow(s[:0], n)[:n]
}

// readChoices turns shares into main offers and splits, and sums them up.
func (p *Prices) readChoices(m *Market) {
	x := &p.x

	p.Main = append(p.Main[:0], x.key...)
	p.Demand = resize(p.Demand, len(m.Capacity))
	clear(p.Demand)
	p.Splits = p.Splits[:0]
	p.Served, p.Accuracy, p.Value = 0, 0, 0

	// Columns of the basis that are at 0 are degenerate: they split nobody.
	for i := range x.kinds {
		b := x.basis[i]
		const nothing = 1e-9
		if b.bidder != Nowhere && x.level[i] > nothing {
			p.Splits = append(p.Splits, Split{b.bidder, b.offer, min(1, x.level[i])})
		}
	}

	for q := range m.Bidders {
		if b := &m.Bidders[q]; b.Rate == 0 {
			p.Main[q] = b.Choose(p.Price, m.Value) // nobody asks; whoever does next gets this
			continue
		}

		// The main offer gets what the splits leave.
		rest := 1.0
		for i := range p.Splits {
			if s := &p.Splits[i]; int(s.Bidder) == q {
				rest -= s.Share
				p.add(m, q, s.Offer, s.Share)
			}
		}
		p.add(m, q, p.Main[q], max(0, rest))
	}

	if p.Served > 0 {
		p.Accuracy /= p.Served
	}

	// Weak duality: what each bidder gains at these prices, and what the capacity is worth.
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

func (p *Prices) add(m *Market, q int, offer int32, share float64) {
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

// readSlopes finds Slope and Ceiling of every kind from the ends and the steepest step of each
// bidder's offers on it.
func (p *Prices) readSlopes(m *Market) {
	kinds := len(m.Capacity)
	p.Slope, p.Ceiling = resize(p.Slope, kinds), resize(p.Ceiling, kinds)
	clear(p.Ceiling)

	var gain, cost [KindsMax]float64

	for q := range m.Bidders {
		b := &m.Bidders[q]
		var light, heavy [KindsMax]*Offer
		for j := range b.Offers {
			o := &b.Offers[j]
			if o.Accuracy < b.Floor {
				continue
			}
			if l := light[o.Kind]; l == nil || o.Cost < l.Cost {
				light[o.Kind] = o
			}
			if h := heavy[o.Kind]; h == nil || o.Accuracy > h.Accuracy || o.Accuracy == h.Accuracy && o.Cost < h.Cost {
				heavy[o.Kind] = o
			}
		}

		// Above the steepest step away from the lightest offer nobody takes a heavier one.
		for j := range b.Offers {
			o := &b.Offers[j]
			if l := light[o.Kind]; l != nil && o.Cost > l.Cost && o.Accuracy > l.Accuracy {
				p.Ceiling[o.Kind] = max(p.Ceiling[o.Kind], (o.Accuracy-l.Accuracy)/(o.Cost-l.Cost))
			}
		}

		for k := range kinds {
			if light[k] != nil {
				gain[k] += b.Rate * (heavy[k].Accuracy - light[k].Accuracy)
				cost[k] += b.Rate * (heavy[k].Cost - light[k].Cost)
			}
		}
	}

	// A kind on which nobody has two offers has no slope: its price between plans stands still.
	for k := range kinds {
		p.Slope[k] = 0
		if gain[k] > 0 && cost[k] > 0 {
			p.Slope[k] = gain[k] / cost[k]
		}
	}
}
