package plan

// LearnShareMost is the largest share of the GPUs' time that learners may buy.
const LearnShareMost = 0.5

// givesWayAt is the price at which learners give way, as a share of the price at which the first request would go
// unserved.
const givesWayAt = 0.5

// bidLearners adds the learners' demand for each sub-cluster's time to a market. Its value is below that of any
// request at its floor, so all families go down to their floors first, and no request goes unserved because of it
// (UNIFIED U10).
func (p *Pricer) bidLearners(m *Market) {
	for k := range p.homes {
		h := &p.homes[k]
		p.bidTime(m, k, h.Learning*float64(h.GPUs), givesWayAt*p.leastWorth(k))
	}
}

// bidTime adds a bidder for a number of GPUs of a kind to a market. It buys while the price of a GPU second is at
// most worth. Nothing is added if gpus or worth is 0.
func (p *Pricer) bidTime(m *Market, kind int, gpus, worth float64) {
	if gpus == 0 || worth == 0 {
		return
	}

	// Bidders keep their memory.
	q := len(m.Bidders)
	if q == len(p.market.Bidders) {
		p.market.Bidders = append(p.market.Bidders, Bidder{})
	}
	m.Bidders = p.market.Bidders[:q+1]

	// An offer without accuracy is worth m.Value, so its cost sets the price up to which it buys.
	b, cost := &m.Bidders[q], m.Value/worth
	b.Rate, b.Offers = gpus/cost, append(b.Offers[:0], Offer{Kind: int32(kind), Cost: cost})
}

// leastWorth returns the lowest price at which a request is not worth its GPU time on a kind; 0 if there is no demand
// for the kind.
func (p *Pricer) leastWorth(kind int) (least float64) {
	for q := range p.bids {
		b := &p.market.Bidders[q]
		if b.Rate == 0 {
			continue
		}

		most := 0.0
		for j := range b.Offers {
			if o := &b.Offers[j]; int(o.Kind) == kind {
				most = max(most, (p.market.Value+o.Accuracy)/o.Cost)
			}
		}

		if most > 0 && (least == 0 || most < least) {
			least = most
		}
	}
	return least
}

// noteBought replaces each home's demanded learner share by the share that was bought. The learners are the bidders
// from p.bids up to end.
func (p *Pricer) noteBought(m *Market, end int) {
	for q := p.bids; q < end; q++ {
		got := 1.0
		if p.prices.Main[q] == NotServed {
			got = 0
		}

		// A split share counts on both of its sides.
		for _, s := range p.prices.Splits {
			switch {
			case int(s.Bidder) != q:
			case s.Offer == NotServed:
				got = 1 - s.Share
			default:
				got = s.Share
			}
		}

		p.homes[m.Bidders[q].Offers[0].Kind].Learning *= got
	}
}
