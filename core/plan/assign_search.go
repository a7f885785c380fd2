package plan

import (
	"fmt"
	"slices"
)

const (
	// balanced is where the search ends: nobody can measure less.
	balanced = 0.0002
	// partnersMax is how many other sub-clusters are tried for one that deviates.
	partnersMax = 12
)

// placeHomeless puts the services without a home, largest first, where they fit best.
func (s *assignmentSearch) placeHomeless() {
	var homeless []int32
	for i := range s.home {
		if s.home[i] == Nowhere {
			homeless = append(homeless, int32(i))
		}
	}

	// Large services have few places where they fit, and small ones even out what those leave.
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

// repair exchanges services until no limit is exceeded, or nothing helps any more.
func (s *assignmentSearch) repair() {
	for s.tried < s.limit {
		worst, over := 0, 0.0
		for j := range s.loads {
			if o := s.overload(j, Nowhere, Nowhere); o > over {
				worst, over = j, o
			}
		}
		if over == 0 || !s.relieve(worst) {
			return
		}
	}
}

// relieve makes the exchange that lowers the overloads of one sub-cluster and its partner most.
func (s *assignmentSearch) relieve(p int) bool {
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

	s.exchange(best.i, best.k, best.q)
	return true
}

// exchange is a service that goes to a sub-cluster, and one (or Nowhere) that comes for it.
type exchange struct {
	i, k int32
	q    int
	gain float64
}

// eachExchange calls try for every service of p alone, and with every service of q.
func (s *assignmentSearch) eachExchange(p, q int, try func(i, k int32)) {
	for _, i := range s.loads[p].members {
		// Each try counts, so that the effort bounds the time whatever the problem's size is.
		s.tried += 1 + len(s.loads[q].members)
		try(i, Nowhere)
		for _, k := range s.loads[q].members {
			try(i, k)
		}
	}
}

// effort is the number of exchanges that the search of this problem may try.
func (p *AssignmentProblem) effort() int {
	if p.Effort > 0 {
		return p.Effort
	}
	return 2_000_000 + 2000*len(p.Services)
}

// improve descends to where no exchange helps, and then kicks the assignment out of there and
// descends again, keeping the best, until it is balanced or the effort is spent. After every other
// kick it only polishes: the optimum need not lie near one of the sum of squares.
func (s *assignmentSearch) improve() {
	s.descend()
	s.polish()
	best, home := s.objective(), slices.Clone(s.home)

	// From here on everything is undone that does not lead to something better.
	for s.tried < s.limit && best > balanced && len(s.loads) > 1 && len(s.home) > 1 {
		s.kick()
		if s.randomBelow(2) == 0 {
			s.descend()
		}
		s.polish()
		if now := s.objective(); now < best && s.violation() == 0 {
			best = now
			copy(home, s.home)
		} else {
			s.restore(home)
		}
	}
	s.restore(home)
}

// restore puts every service where it was.
func (s *assignmentSearch) restore(home []int32) {
	for i, j := range home {
		if s.home[i] != j {
			s.removeService(int32(i))
			s.assignService(int32(i), int(j))
		}
	}
}

// descend takes the sub-cluster that deviates most, finds the best exchange with one that deviates
// the other way, and goes on until no sub-cluster finds one.
func (s *assignmentSearch) descend() {
	stuck := make([]bool, len(s.loads))
	for s.tried < s.limit {
		p, most := Nowhere, balanced*balanced/64
		for j := range s.loads {
			if d := s.deviation(j); !stuck[j] && d > most {
				p, most = j, d
			}
		}
		if p == Nowhere {
			return
		}

		// An exchange changes what others can do, so whoever was stuck gets another turn.
		found := s.bestExchange(p)
		stuck[p] = found.gain <= 0
		if found.gain > 0 {
			s.exchange(found.i, found.k, found.q)
			clear(stuck)
		}
	}
}

// deviation is the square of how far a sub-cluster is from its share.
func (s *assignmentSearch) deviation(j int) float64 {
	demand, memory := s.loadAfter(j, Nowhere, Nowhere), s.loads[j].memory
	return demand*demand + memory*memory
}

// bestExchange looks for the exchange of p that lowers the squares of all deviations most, per cost
// where moves cost. The partners that deviate most the other way come first, and the first that
// takes away a tenth of p's deviation is good enough.
func (s *assignmentSearch) bestExchange(p int) exchange {
	c := &s.loads[p]
	order := make([]int32, 0, len(s.loads))
	for q := range s.loads {
		if q != p {
			order = append(order, int32(q))
		}
	}

	// Partners that deviate the opposite way have a negative product, and come first.
	along := func(q int32) float64 { return c.demand*s.loads[q].demand + c.memory*s.loads[q].memory }
	slices.SortStableFunc(order, func(a, b int32) int {
		switch x, y := along(a), along(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})

	// Beyond a dozen partners there is seldom anything better, and with a hundred sub-clusters the search
	// would take eight times as long.
	var best exchange
	score := 0.0
	for _, q := range order[:min(len(order), partnersMax)] {
		if found, worth := s.bestExchangeWith(p, int(q)); worth > score {
			best, score = found, worth
		}
		if best.gain > 0.1*s.deviation(p) && s.budget == 0 {
			break
		}
	}
	return best
}

// bestExchangeWith returns the best exchange of two sub-clusters and what it is worth.
func (s *assignmentSearch) bestExchangeWith(p, q int) (best exchange, worth float64) {
	a, b := &s.loads[p], &s.loads[q]
	perDemand, perMemory := 1/s.demandShare[p], 1/s.memoryShare[p]
	qDemand, qMemory := 1/s.demandShare[q], 1/s.memoryShare[q]
	before := s.deviation(p) + s.deviation(q)

	try := func(i, k int32, demand, memory float64) {
		pd, pm := a.demand-demand*perDemand, a.memory-memory*perMemory
		qd, qm := b.demand+demand*qDemand, b.memory+memory*qMemory
		gain := before - pm*pm - qm*qm
		if s.crowds {
			// Crowding only adds to a load, so that most exchanges are out before it is known.
			if over, under := max(0, pd), max(0, qd); gain-over*over-under*under <= worth {
				return
			}
			pd, qd = s.loadAfter(p, i, k), s.loadAfter(q, k, i)
		}
		gain -= pd*pd + qd*qd
		if gain <= worth || gain < 1e-15 {
			return
		}

		// A move that costs must bring more: the bound is spent where it evens out most.
		score := gain // and less where a move costs: so a gain below the best worth is out
		cost := s.moveCost(i, k, q)
		if cost > 0 {
			if s.spent+cost > s.budget {
				return
			}
			score = gain / (1 + cost/s.budget*float64(len(s.home)))
		}
		if score > worth && s.overload(p, i, k)+s.overload(q, k, i) == 0 {
			best, worth = exchange{i, k, q, gain}, score
		}
	}

	// This loop is the search: a few nanoseconds for each exchange.
	for _, i := range a.members {
		demand, memory := s.demand[i], s.memory[i]
		s.tried += 1 + len(b.members)
		try(i, Nowhere, demand, memory)
		for _, k := range b.members {
			try(i, k, demand-s.demand[k], memory-s.memory[k])
		}
	}
	return best, worth
}

// polish lowers the objective itself, the two largest deviations, where descend lowers the sum of
// squares: with few services their optima differ.
func (s *assignmentSearch) polish() {
	for s.tried < s.limit {
		worstDemand, worstMemory, most := 0, 0, 0.0
		for j := range s.loads {
			if d := s.excess(s.loadAfter(j, Nowhere, Nowhere)); d > most {
				worstDemand, most = j, d
			}
			if abs(s.loads[j].memory) > abs(s.loads[worstMemory].memory) {
				worstMemory = j
			}
		}

		// Only an exchange of one that holds a maximum can lower it.
		best := s.bestPolish(worstDemand)
		if other := s.bestPolish(worstMemory); other.gain > best.gain {
			best = other
		}
		if best.gain <= 1e-12 {
			return
		}
		s.exchange(best.i, best.k, best.q)
	}
}

// bestPolish returns the exchange of p that lowers the objective most.
func (s *assignmentSearch) bestPolish(p int) (best exchange) {
	before := s.objective()
	a := &s.loads[p]
	for q := range s.loads {
		if q == p {
			continue
		}
		var demandElse, memoryElse float64 // the largest deviations of all others
		for j := range s.loads {
			if j != p && j != q {
				demandElse, memoryElse = max(demandElse, s.excess(s.loadAfter(j, Nowhere, Nowhere))), max(memoryElse, abs(s.loads[j].memory))
			}
		}

		// The others alone deviate so much that nothing these two do is better than what was found.
		if demandElse+memoryElse >= before-best.gain {
			continue
		}

		b := &s.loads[q]
		s.eachExchange(p, q, func(i, k int32) {
			memory := s.memory[i]
			if k != Nowhere {
				memory -= s.memory[k]
			}
			after := max(demandElse, s.excess(s.loadAfter(p, i, k)), s.excess(s.loadAfter(q, k, i))) +
				max(memoryElse, abs(a.memory-memory/s.memoryShare[p]), abs(b.memory+memory/s.memoryShare[q]))
			if before-after > best.gain && s.allowed(i, k, p, q) {
				best = exchange{i, k, q, before - after}
			}
		})
	}
	return best
}

// allowed reports whether an exchange breaks no limit.
func (s *assignmentSearch) allowed(i, k int32, p, q int) bool {
	return s.spent+s.moveCost(i, k, q) <= s.budget && s.overload(p, i, k)+s.overload(q, k, i) == 0
}

// kick moves and exchanges a few services without looking at the balance. One kick in four looks at
// no limit either, and repairs what it broke: where GPUs are nearly full, nothing else leads from one
// arrangement to another.
func (s *assignmentSearch) kick() {
	heedless := s.randomBelow(4) == 0
	for range 1 + s.randomBelow(3) {
		i, k := int32(s.randomBelow(len(s.home))), int32(s.randomBelow(len(s.home)))
		q := int(s.home[k])
		if s.randomBelow(4) == 0 {
			q, k = s.randomBelow(len(s.loads)), Nowhere
		}
		s.tried++

		// Even a heedless kick keeps to the bound on moves: nothing could repair that.
		p := int(s.home[i])
		if p != q && (heedless && s.spent+s.moveCost(i, k, q) <= s.budget || s.allowed(i, k, p, q)) {
			s.exchange(i, k, q)
		}
	}

	if heedless {
		s.repair()
	}
}

// randomBelow returns a number below n from a fixed sequence (a linear congruence): the same problem takes
// the same kicks.
func (s *assignmentSearch) randomBelow(n int) int {
	s.random = s.random*6364136223846793005 + 1442695040888963407
	return int(s.random >> 33 % uint64(n))
}

// explainViolation names the limit that is exceeded most. Where more could be met if more might
// move, the bound on moves is what stands in the way.
func (s *assignmentSearch) explainViolation() error {
	if s.p.MoveShare < 1 {
		free := *s.p
		free.MoveShare = 1
		f := newAssignmentSearch(&free)
		f.placeHomeless()
		f.repair()
		if a := f.assignment(); f.violation() == 0 {
			return &InfeasibleError{"load time of the services that must move, as a share of all", a.MovedShare, s.p.MoveShare, "(share)"}
		}
	}

	worst, over := 0, 0.0
	for j := range s.loads {
		if o := s.overload(j, Nowhere, Nowhere); o > over {
			worst, over = j, o
		}
	}

	c, limit := &s.loads[worst], &s.p.SubClusters[worst]
	if need := c.static + c.dynamic; need > limit.Memory {
		return &InfeasibleError{fmt.Sprintf("memory of sub-cluster %d", worst), float64(need), float64(limit.Memory), "bytes"}
	}
	return &InfeasibleError{fmt.Sprintf("rate of sub-cluster %d", worst), c.rate, limit.RateMax, "requests/s"}
}
