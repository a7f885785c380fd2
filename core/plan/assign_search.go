package plan

import "slices"

const (
	// balanced is the objective at which the search ends: a smaller imbalance could not be measured.
	balanced = 0.0002
	// partnersMax is how many other sub-clusters are tried for one that deviates.
	partnersMax = 12
)

// effort is the number of exchanges that the search of this problem may try.
func (p *AssignmentProblem) effort() int {
	if p.Effort > 0 {
		return p.Effort
	}
	return 2_000_000 + 2000*len(p.Services)
}

// improveByKicks makes exchanges until none helps, kicks the assignment out of that optimum and begins again, until the
// assignment is balanced or the effort is spent. The best assignment stays. After half of the kicks it lowers only the
// maxima, because their optimum need not lie near one of the squares.
func (s *assignmentSearch) improveByKicks() {
	s.lowerSquares()
	s.lowerMaxima()
	best, home := s.objective(), slices.Clone(s.home)

	// A kick and what follows it are undone unless they end in a better assignment.
	for s.tried < s.limit && best > balanced && len(s.loads) > 1 && len(s.home) > 1 {
		s.kickServices()
		if s.randomBelow(2) == 0 {
			s.lowerSquares()
		}
		s.lowerMaxima()
		if now := s.objective(); now < best && s.violation() == 0 {
			best = now
			copy(home, s.home)
		} else {
			s.restoreHomes(home)
		}
	}
	s.restoreHomes(home)
}

// kickServices moves and exchanges a few services whatever that does to the balance. One kick in four ignores the limits,
// too, and then repairs them: where GPUs are nearly full, nothing else leads from one arrangement to another.
func (s *assignmentSearch) kickServices() {
	ignoresLimits := s.randomBelow(4) == 0
	for range 1 + s.randomBelow(3) {
		i, k := int32(s.randomBelow(len(s.home))), int32(s.randomBelow(len(s.home)))
		q := int(s.home[k])
		if s.randomBelow(4) == 0 {
			q, k = s.randomBelow(len(s.loads)), Nowhere
		}
		s.tried++

		// Every kick keeps to the bound on moves, since no repair lowers what was spent.
		p := int(s.home[i])
		if p != q && (ignoresLimits && s.spent+s.moveCost(i, k, q) <= s.budget || s.isAllowed(i, k, p, q)) {
			s.exchangeServices(exchange{i: i, k: k, q: q})
		}
	}

	if ignoresLimits {
		s.repairLimits()
	}
}

// randomBelow returns a number below n from a linear congruential generator, so that the same problem takes the same kicks.
func (s *assignmentSearch) randomBelow(n int) int {
	s.random = s.random*6364136223846793005 + 1442695040888963407
	return int(s.random >> 33 % uint64(n))
}

// restoreHomes puts every service where it was.
func (s *assignmentSearch) restoreHomes(home []int32) {
	for i, j := range home {
		if s.home[i] != j {
			s.removeService(int32(i))
			s.assignService(int32(i), int(j))
		}
	}
}
