package plan

import "math"

// roomParts are at which parts of the price at which the first request would go unserved the two parts of a home's room are
// sold (decision 0366).
var roomParts = [...]float64{0.001, 0.003}

// bidRoom adds to a market the room of each home: time that is left to requests which come by chance, since these scatter with the
// root of the number of GPUs; one alone has none. Who gains more by it than it is worth gets it, so that GPUs are sold whole where they are short.
func (p *Pricer) bidRoom(m *Market) {
	for k := range p.homes {
		room, least := (math.Sqrt(float64(p.homes[k].GPUs))-1)/2, p.leastWorth(k)
		for _, part := range roomParts {
			p.bidTime(m, k, max(0, room), part*least)
		}
	}
}
