package plan

import "math"

// roomParts are the prices of the two parts of a home's room, as shares of the price at which the first request would
// go unserved (decision 0366).
var roomParts = [...]float64{0.001, 0.003}

// bidRoom adds each home's room to a market: GPU time kept for requests that arrive close together by chance. Their number
// scatters with the root of the number of GPUs, so a single GPU has no room. Bidders whose gain exceeds the price of the
// room buy it, so a home with scarce GPU time sells all of it.
func (p *Pricer) bidRoom(m *Market) {
	for k := range p.homes {
		room, least := (math.Sqrt(float64(p.homes[k].GPUs))-1)/2, p.leastWorth(k)
		for _, part := range roomParts {
			p.bidTime(m, k, max(0, room), part*least)
		}
	}
}
