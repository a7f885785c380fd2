package plan

import "slices"

// lowerSquares lowers the sum of the squares of all deviations. It makes the best exchange of the sub-cluster that deviates
// most, until no sub-cluster has one.
func (s *assignmentSearch) lowerSquares() {
	stuck := make([]bool, len(s.loads))
	for s.tried < s.limit {
		p, most := Nowhere, balanced*balanced/64
		for j := range s.loads {
			if d := s.squaredDeviation(j); !stuck[j] && d > most {
				p, most = j, d
			}
		}
		if p == Nowhere {
			return
		}

		// An exchange may help a sub-cluster that had none before.
		found := s.bestForSquares(p)
		stuck[p] = found.gain <= 0
		if found.gain > 0 {
			s.exchangeServices(found)
			clear(stuck)
		}
	}
}

// squaredDeviation is the square of how far a sub-cluster is from its share.
func (s *assignmentSearch) squaredDeviation(j int) float64 {
	demand, memory := s.loadAfter(j, Nowhere, Nowhere), s.loads[j].memory
	return demand*demand + memory*memory
}

// bestForSquares returns the exchange of p that lowers the sum of squares most, per cost where moves cost. It tries the
// partners that deviate most the other way first. Where moves are free, it takes the first exchange that lowers the sum by a
// tenth of p's square.
func (s *assignmentSearch) bestForSquares(p int) exchange {
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

	// Later partners seldom have anything better, and with a hundred sub-clusters all of them would take eight times as long.
	var best exchange
	score := 0.0
	for _, q := range order[:min(len(order), partnersMax)] {
		if found, worth := s.bestForSquaresWith(p, int(q)); worth > score {
			best, score = found, worth
		}
		if best.gain > 0.1*s.squaredDeviation(p) && s.budget == 0 {
			break
		}
	}
	return best
}

// bestForSquaresWith returns the best exchange of p with q and what it is worth: its gain, less where it costs moves.
func (s *assignmentSearch) bestForSquaresWith(p, q int) (best exchange, worth float64) {
	a, b := &s.loads[p], &s.loads[q]
	perDemand, perMemory := 1/s.demandShare[p], 1/s.memoryShare[p]
	qDemand, qMemory := 1/s.demandShare[q], 1/s.memoryShare[q]
	before := s.squaredDeviation(p) + s.squaredDeviation(q)

	try := func(i, k int32, demand, memory float64) {
		pd, pm := a.demand-demand*perDemand, a.memory-memory*perMemory
		qd, qm := b.demand+demand*qDemand, b.memory+memory*qMemory
		gain := before - pm*pm - qm*qm
		if s.crowds {
			// Crowding only adds to a load, so most exchanges are ruled out before it is computed.
			if over, under := max(0, pd), max(0, qd); gain-over*over-under*under <= worth {
				return
			}
			pd, qd = s.loadAfter(p, i, k), s.loadAfter(q, k, i)
		}
		gain -= pd*pd + qd*qd
		if gain <= worth || gain < 1e-15 {
			return
		}

		// A move that costs must gain more, so that the bound on moves is spent where it evens out most. A score is at
		// most its gain, which is why a gain below the best worth was ruled out above.
		score := gain
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

	// Nearly all time of the search is spent here, at a few nanoseconds for each exchange.
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
