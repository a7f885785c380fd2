package plan

// lowerMaxima makes exchanges that lower the objective itself, the sum of the two largest deviations. lowerSquares lowers
// the sum of squares; with few services the two have different optima.
func (s *assignmentSearch) lowerMaxima() {
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

		// Only an exchange of a sub-cluster with a largest deviation lowers that deviation.
		best := s.bestForMaxima(worstDemand)
		if other := s.bestForMaxima(worstMemory); other.gain > best.gain {
			best = other
		}
		if best.gain <= 1e-12 {
			return
		}
		s.exchangeServices(best)
	}
}

// bestForMaxima returns the exchange of p that lowers the objective most.
func (s *assignmentSearch) bestForMaxima(p int) (best exchange) {
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

		// No exchange of these two is better than the best one if the others alone deviate too much for that.
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
			if before-after > best.gain && s.isAllowed(i, k, p, q) {
				best = exchange{i, k, q, before - after}
			}
		})
	}
	return best
}
