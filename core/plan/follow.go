package plan

import (
	"math"
	"time"
)

const (
	// followRate is κ: how fast a price follows, per second.
	followRate = 10
	// followBad is the share of bad requests at which a price stands still.
	followBad = 0.005
	// fadeTime is the time constant with which a price falls back to what was planned.
	fadeTime = time.Second
)

// Follow moves the prices that dispatch uses, by kind, between one plan and the next (UNIFIED U3): a
// price rises while more than 0.5 % of the kind's requests go bad, dμ/dt = κ·(r − 0.005)·m, with m what
// accuracy costs on average, and falls back to what was planned within seconds when fewer do. So a burst
// lowers accuracy before it drops requests. badShare is r of the last second, by kind. U3 has the price fall
// by the same law; at no bad requests that is 0.05·m per second, and after an overload, at whose end the
// plan itself was far above all that variants differ by, accuracy would stay low for a minute.
//
// A price rises no further than to where a share of r of the demand is gone. Without that bound it
// jumps past several steps of a bidder at once, falls back, and so on for ever; with it, steady rates end
// in a steady choice, or in two neighbouring ones by turns. It stays between the planned price and
// the ceiling, beyond which nobody has a lighter offer.
func (p *Prices) Follow(m *Market, followed, badShare []float64, elapsed time.Duration) {
	for k := range followed {
		bad := badShare[k]
		if !(bad >= 0) {
			bad = 0 // NaN as well: nobody asked for anything
		}

		// A plan may have moved past the followed price in either direction.
		planned, ceiling := p.Price[k], max(p.Price[k], p.Ceiling[k])
		price := min(max(followed[k], planned), ceiling)
		change := followRate * (min(bad, 1) - followBad) * p.Slope[k] * max(0, elapsed.Seconds())
		if change <= 0 {
			followed[k] = planned + (price-planned)*math.Exp(-elapsed.Seconds()/fadeTime.Seconds())
			continue
		}

		// Shedding r of the demand is all that a share of r asks for.
		followed[k] = price
		followed[k] = m.priceToShed(k, followed, bad, min(price+change, ceiling))
	}
}

// priceToShed returns the lowest price of a kind, from its present one up to most, at which the
// demand for it is smaller by a share.
func (m *Market) priceToShed(kind int, price []float64, share, most float64) float64 {
	const rounds = 24

	present := price[kind]
	defer func() { price[kind] = present }()

	// Demand falls in steps as the price rises, so halving finds the first price that is high enough.
	enough := m.demandOn(kind, price) * (1 - share)
	low, high := present, most
	for range rounds {
		price[kind] = (low + high) / 2
		if m.demandOn(kind, price) <= enough {
			high = price[kind]
		} else {
			low = price[kind]
		}
	}
	return high
}

// demandOn is the demand for a kind in GPUs when everybody chooses at prices.
func (m *Market) demandOn(kind int, price []float64) float64 {
	sum := 0.0
	for q := range m.Bidders {
		b := &m.Bidders[q]
		if j := b.Choose(price, m.Value); j != NotServed && int(b.Offers[j].Kind) == kind {
			sum += b.Rate * b.Offers[j].Cost
		}
	}
	return sum
}
