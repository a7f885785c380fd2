package plan

import (
	"math"
	"slices"
)

const (
	// annealRounds is how often the exchanges start anew from the best assignment: one run in three or four ends badly.
	annealRounds = 3
	// annealWidth is the deviation with which a sub-cluster's penalty grows e-fold.
	annealWidth = 0.005
	// annealHeat is the temperature at the start, as a share of the fullest sub-cluster's penalty.
	annealHeat = 0.1
	// annealEffort is how many tried exchanges a random exchange counts as.
	annealEffort = 3
)

// annealing improves an assignment by random exchanges.
type annealing struct {
	*assignmentSearch
	mostLoad, mostMemory float64   // the largest deviations at the start
	penalties            []float64 // by sub-cluster
}

// improveByAnnealing spends the remaining effort on random exchanges, and keeps the best assignment. Where services are large,
// only exchanges among three or more sub-clusters relieve the fullest one, and each of them by itself makes something worse:
// lowerSquares, lowerMaxima and kicks seldom find them.
func (s *assignmentSearch) improveByAnnealing() {
	best, home := s.objective(), slices.Clone(s.home)
	for left := annealRounds; left > 0 && best > balanced; left-- {
		tries := max(0, s.limit-s.tried) / annealEffort / left
		s.anneal(tries)
		s.tried += tries * annealEffort
		s.lowerMaxima()

		if now := s.objective(); now < best {
			best = now
			copy(home, s.home)
		} else {
			s.restoreHomes(home)
		}
	}
}

// anneal makes random exchanges that lower the sum of all penalties and, more and more seldom, some that raise it.
func (s *assignmentSearch) anneal(tries int) {
	a := annealing{assignmentSearch: s, penalties: make([]float64, len(s.loads))}
	for j := range s.loads {
		a.mostLoad, a.mostMemory = max(a.mostLoad, s.loadAfter(j, Nowhere, Nowhere)), max(a.mostMemory, abs(s.loads[j].memory))
	}
	for j := range s.loads {
		a.penalties[j] = a.penalty(s.loadAfter(j, Nowhere, Nowhere), s.loads[j].memory)
	}
	for k := range tries {
		a.exchangeRandom(annealHeat * float64(tries-k) / float64(tries))
	}
}

// penalty rises so steeply with a sub-cluster's deviations that the largest ones decide the sum of all penalties.
func (a *annealing) penalty(load, memory float64) float64 {
	return math.Exp((load-a.mostLoad)/annealWidth) + math.Exp((abs(memory)-a.mostMemory)/annealWidth)
}

// exchangeRandom draws two sub-clusters, a service of the one and, seven times in eight, a service of the other. It exchanges
// them if that lowers the sum of penalties, or raises it by not much more than the heat. It draws sub-clusters first because
// two services drawn from all would seldom both be large.
func (a *annealing) exchangeRandom(heat float64) {
	p, q := a.randomBelow(len(a.loads)), a.randomBelow(len(a.loads))
	from, to := a.loads[p].members, a.loads[q].members
	if p == q || len(from) == 0 {
		return
	}

	i, k := from[a.randomBelow(len(from))], int32(Nowhere)
	demand, memory := a.demand[i], a.memory[i]
	if len(to) > 0 && a.randomBelow(8) > 0 {
		k = to[a.randomBelow(len(to))]
		demand, memory = demand-a.demand[k], memory-a.memory[k]
	}

	// Crowding only adds to a load, so most exchanges are ruled out before it is computed.
	if max(a.loads[p].demand-demand/a.demandShare[p], a.loads[q].demand+demand/a.demandShare[q]) > a.mostLoad {
		return
	}

	atP := a.penalty(a.loadAfter(p, i, k), a.loads[p].memory-memory/a.memoryShare[p])
	atQ := a.penalty(a.loadAfter(q, k, i), a.loads[q].memory+memory/a.memoryShare[q])
	rise := atP + atQ - a.penalties[p] - a.penalties[q]
	if rise > 0 && a.randomShare() >= math.Exp(-rise/heat) || !a.isAllowed(i, k, p, q) {
		return
	}
	a.exchangeServices(exchange{i: i, k: k, q: q})
	a.penalties[p], a.penalties[q] = atP, atQ
}

// randomShare returns a number of the fixed sequence, from 0 to below 1.
func (s *assignmentSearch) randomShare() float64 {
	const parts = 1 << 30
	return float64(s.randomBelow(parts)) / parts
}
