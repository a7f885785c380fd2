package plan

import (
	"cmp"
	"slices"
)

// share is the share of its demand that a sub-cluster loses if its GPUs become free this seldom.
type share struct{ seldom, lost float64 }

// crowding lists the measured losses of sub-clusters whose GPUs become free too seldom for their most impatient service.
// seldom is the mean time between two free GPUs as a share of that service's room (mixes on 8 to 32 GPUs, decision 0364).
//
// In crowdingLone it is multiplied by the number of GPUs, which gives batch time over room: a service alone among much
// longer batches loses even if GPUs become free often (32 and 64 GPUs, decision 0368).
var (
	crowding     = []share{{0.05, 0}, {0.15, 0.028}, {0.4, 0.10}, {1, 0.14}}
	crowdingLone = []share{{2.6, 0}, {3.4, 0.025}, {6, 0.035}, {10, 0.07}, {32, 0.14}}
)

// loneMax is the largest number of GPUs on which crowdingLone was measured; with more GPUs waits become more even.
const loneMax = 64

// lostToCrowding returns the share of its demand that a sub-cluster with this number of GPUs loses.
func lostToCrowding(seldom float64, gpus int) float64 {
	return max(interpolate(crowding, seldom), interpolate(crowdingLone, seldom*float64(min(gpus, loneMax))))
}

// interpolate interpolates linearly between the points and is constant beyond them.
func interpolate(points []share, seldom float64) float64 {
	before := points[0]
	for _, p := range points[1:] {
		if seldom <= p.seldom {
			return before.lost + max(0, seldom-before.seldom)/(p.seldom-before.seldom)*(p.lost-before.lost)
		}
		before = p
	}
	return before.lost
}

// loadWith returns the relative deviation of a sub-cluster's load from its share, given the deviation of its demand; the
// load includes what crowding adds. held is Σ demand × batch time, room the least room of its services, both in seconds
// and 0 if unknown.
func (s *assignmentSearch) loadWith(j int, deviation, held, room float64) float64 {
	demand := deviation + 1
	if room == 0 || demand <= 0 {
		return deviation
	}
	gpus := s.p.SubClusters[j].GPUs
	seldom := held / (demand * s.demandShare[j]) / (float64(gpus) * room)
	return demand/(1-lostToCrowding(seldom, gpus)) - 1
}

// loadAfter returns loadWith after one service leaves the sub-cluster and another joins it; either may be Nowhere.
func (s *assignmentSearch) loadAfter(j int, leaves, comes int32) float64 {
	c := &s.loads[j]
	deviation, held, room := c.demand, c.held, c.room

	if leaves != Nowhere {
		deviation -= s.demand[leaves] / s.demandShare[j]
		held -= s.held[leaves]
		if leaves == c.impatient {
			room = c.roomNext
		}
	}

	if comes != Nowhere {
		deviation += s.demand[comes] / s.demandShare[j]
		held += s.held[comes]
		room = shorter(room, s.room[comes])
	}
	return s.loadWith(j, deviation, held, room)
}

// shorter returns the lesser of two rooms; 0 means unknown.
func shorter(a, b float64) float64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// notePatience updates the two least rooms of a sub-cluster for a service that joined it.
func (s *assignmentSearch) notePatience(c *load, i int32) {
	switch room := s.room[i]; {
	case room == 0:
	case c.impatient == Nowhere || room < c.room:
		c.roomNext, c.room, c.impatient = c.room, room, i
	default:
		c.roomNext = shorter(c.roomNext, room)
	}
}

// forgetPatience recomputes the two least rooms of a sub-cluster, if the service that left had one of them.
func (s *assignmentSearch) forgetPatience(c *load, i int32) {
	if s.room[i] == 0 || i != c.impatient && s.room[i] > c.roomNext {
		return
	}

	c.room, c.roomNext, c.impatient = 0, 0, Nowhere
	for _, k := range c.members {
		s.notePatience(c, k)
	}
}

// placeInBands places all services anew. In the order of their room, it fills one sub-cluster after the other up to its share
// of the demand. Exchanges of a few services do not lead from a mixed assignment to one that separates impatient services.
func (s *assignmentSearch) placeInBands() {
	order := make([]int32, len(s.home))
	for i := range order {
		order[i] = int32(i)
		if s.home[i] != Nowhere {
			s.removeService(int32(i))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(s.room[a], s.room[b]) })

	j, end, placed := 0, s.demandShare[0], 0.0
	for _, i := range order {
		// A service that crosses a border goes to the side of its larger part.
		for placed+s.demand[i]/2 > end && j < len(s.loads)-1 {
			j++
			end += s.demandShare[j]
		}
		s.assignService(i, j)
		placed += s.demand[i]
	}
}

// orInBands returns the better of this assignment and one that starts from bands, on which it spends all effort but an eighth.
func (s *assignmentSearch) orInBands() *assignmentSearch {
	b := newAssignmentSearch(s.p)
	b.placeInBands()

	// Services that do not fit into the memory of their band move on from there.
	b.repairLimits()
	if b.violation() > 0 {
		return s
	}

	// Kicks come first: they keep more of the bands than random exchanges.
	effort := b.limit
	b.limit = effort * 2 / 5
	b.improveByKicks()
	b.limit = effort * 7 / 8
	b.improveByAnnealing()

	// Compare the two by the objective of all exchanges.
	b.tried += s.tried
	if b.objective() < s.objective() {
		return b
	}
	s.tried = b.tried
	return s
}

// mayStartAnew reports whether every service may move: none has a home, or moves are unlimited.
func (p *AssignmentProblem) mayStartAnew() bool {
	return p.MoveShare == 1 || !slices.ContainsFunc(p.Services, func(v Service) bool { return v.Home != Nowhere })
}
