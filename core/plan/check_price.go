package plan

import (
	"fmt"
	"math"
)

// CheckPrices reports a choice that breaks a rule, or whose value is more than gap (relative) below the optimum. By
// weak duality, no choice is worth more than Σ price·capacity plus the gains of all bidders by their best offers at
// these prices, whatever the prices are. So prices and choice prove each other, and no solver is needed.
func CheckPrices(m *Market, p *Prices, gap float64) error {
	if len(p.Main) != len(m.Bidders) || len(p.Price) != len(m.Capacity) || len(p.Splits) > len(m.Capacity) {
		return fmt.Errorf("%d choices for %d bidders, %d prices for %d kinds, %d splits", len(p.Main), len(m.Bidders), len(p.Price), len(m.Capacity), len(p.Splits))
	}

	share := make([][]float64, len(m.Bidders))
	for q, b := range m.Bidders {
		share[q] = make([]float64, len(b.Offers)+1) // the last one is the share that is not served
		share[q][(int(p.Main[q])+len(b.Offers)+1)%(len(b.Offers)+1)] = 1
	}

	for _, s := range p.Splits {
		offers := len(m.Bidders[s.Bidder].Offers)
		if !(s.Share > 0 && s.Share <= 1+1e-9) {
			return fmt.Errorf("bidder %d: a share of %v", s.Bidder, s.Share)
		}
		share[s.Bidder][(int(p.Main[s.Bidder])+offers+1)%(offers+1)] -= s.Share
		share[s.Bidder][(int(s.Offer)+offers+1)%(offers+1)] += s.Share
	}

	// Compute the demand of the shares, and the bound that the prices prove for any shares.
	demand := make([]float64, len(m.Capacity))
	value, bound := 0.0, 0.0
	for q, b := range m.Bidders {
		best := 0.0
		for j, o := range b.Offers {
			if s := share[q][j]; s < -1e-7 || s > 1e-7 && (o.Accuracy < b.Floor || m.Capacity[o.Kind] == 0) {
				return fmt.Errorf("bidder %d: offer %d of accuracy %v on a kind with %v GPUs has a share of %v (floor %v)", q, j, o.Accuracy, m.Capacity[o.Kind], s, b.Floor)
			}
			demand[o.Kind] += share[q][j] * b.Rate * o.Cost
			value += share[q][j] * b.Rate * (m.Value + o.Accuracy)
			if o.Accuracy >= b.Floor && m.Capacity[o.Kind] > 0 {
				best = math.Max(best, b.Rate*(m.Value+o.Accuracy-p.Price[o.Kind]*o.Cost))
			}
		}
		bound += best
	}

	// Unused capacity at a price widens the gap, so prices above 0 for idle GPUs are found too.
	for k, c := range m.Capacity {
		if demand[k] > c*(1+1e-7)+1e-12 {
			return fmt.Errorf("kind %d: %v GPUs needed of %v", k, demand[k], c)
		}
		if !(p.Price[k] >= 0) || math.IsInf(p.Price[k], 1) {
			return fmt.Errorf("kind %d: a price of %v", k, p.Price[k])
		}
		bound += p.Price[k] * c
	}

	if math.Abs(value-p.Value) > 1e-6*(1+value) {
		return fmt.Errorf("a value of %v, the prices say %v", value, p.Value)
	}
	if bound-value > gap*bound+1e-12 {
		return fmt.Errorf("a value of %v where the prices only prove %v: a gap of %.3g", value, bound, 1-value/bound)
	}
	return nil
}
