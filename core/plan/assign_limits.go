package plan

import (
	"fmt"
	"slices"
)

// placeHomeless puts the services without a home where they fit best, the largest first.
func (s *assignmentSearch) placeHomeless() {
	var homeless []int32
	for i := range s.home {
		if s.home[i] == Nowhere {
			homeless = append(homeless, int32(i))
		}
	}

	// Large services fit in few places, and small ones even out what the large ones leave.
	size := func(i int32) float64 { return s.demand[i] + s.memory[i] }
	slices.SortStableFunc(homeless, func(i, k int32) int {
		switch a, b := size(i), size(k); {
		case a > b:
			return -1
		case a < b:
			return 1
		}
		return 0
	})

	for _, i := range homeless {
		best, bestOver, bestRise := 0, 0.0, 0.0
		for j := range s.loads {
			c := &s.loads[j]

			// Limits come first; among places within them, the one where the squares of deviations rise least.
			over := s.overload(j, Nowhere, i) - s.overload(j, Nowhere, Nowhere)
			rise := s.demand[i]/s.demandShare[j]*c.demand + s.memory[i]/s.memoryShare[j]*c.memory
			if j == 0 || over < bestOver || over == bestOver && rise < bestRise {
				best, bestOver, bestRise = j, over, rise
			}
		}
		s.assignService(i, best)
	}
}

// repairLimits exchanges services until no limit is exceeded, or nothing helps any more.
func (s *assignmentSearch) repairLimits() {
	for s.tried < s.limit {
		worst, over := s.worstOverload()
		if over == 0 || !s.relieveSubCluster(worst) {
			return
		}
	}
}

// worstOverload returns the sub-cluster that is farthest beyond its limits; over is 0 if none is.
func (s *assignmentSearch) worstOverload() (worst int, over float64) {
	for j := range s.loads {
		if o := s.overload(j, Nowhere, Nowhere); o > over {
			worst, over = j, o
		}
	}
	return worst, over
}

// relieveSubCluster makes the exchange that lowers the overloads of one sub-cluster and its partner most.
func (s *assignmentSearch) relieveSubCluster(p int) bool {
	before := s.overload(p, Nowhere, Nowhere)
	var best exchange

	for q := range s.loads {
		if q == p {
			continue
		}

		// The partner may be beyond its limits too, as long as the two together come closer to them.
		both := before + s.overload(q, Nowhere, Nowhere)
		s.eachExchange(p, q, func(i, k int32) {
			gain := both - s.overload(p, i, k) - s.overload(q, k, i)

			cost := s.moveCost(i, k, q)
			if gain > best.gain && s.spent+cost <= s.budget {
				best = exchange{i, k, q, gain}
			}
		})
	}

	if best.gain <= 1e-12 {
		return false
	}

	s.exchangeServices(best)
	return true
}

// explainViolation names the limit that is exceeded most, or the bound on moves if all limits could be met without it.
func (s *assignmentSearch) explainViolation() error {
	if s.p.MoveShare < 1 {
		free := *s.p
		free.MoveShare = 1
		f := newAssignmentSearch(&free)
		f.placeHomeless()
		f.repairLimits()
		if a := f.assignment(); f.violation() == 0 {
			return &InfeasibleError{"load time of the services that must move, as a share of all", a.MovedShare, s.p.MoveShare, "(share)"}
		}
	}

	worst, _ := s.worstOverload()
	c, limit := &s.loads[worst], &s.p.SubClusters[worst]
	if need := c.static + c.dynamic; need > limit.Memory {
		return &InfeasibleError{fmt.Sprintf("memory of sub-cluster %d", worst), float64(need), float64(limit.Memory), "bytes"}
	}
	return &InfeasibleError{fmt.Sprintf("rate of sub-cluster %d", worst), c.rate, limit.RateMax, "requests/s"}
}
