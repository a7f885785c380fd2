package plan

import "slices"

// load is what one sub-cluster has been given.
type load struct {
	members []int32
	demand  float64 // deviation from its share of the demand, relative to that share
	memory  float64 // the same of static memory
	static  int64
	rate    float64
	// The two largest dynamic memories, so that the largest without any one member is known.
	dynamic, dynamicNext int64
	largest              int32 // the member that has the larger
	// Of crowding: Σ demand × batch time, the two least rooms, and the member that has the lesser.
	held, room, roomNext float64
	impatient            int32
}

// assignmentSearch is an assignment that is being improved.
type assignmentSearch struct {
	p      *AssignmentProblem
	home   []int32 // by service
	at     []int32 // by service: its index among its sub-cluster's members
	demand []float64
	memory []float64 // by service: shares of the whole
	held   []float64 // by service: demand × batch time, in seconds
	room   []float64 // by service: in seconds; 0: not told
	crowds bool      // some service tells its room
	// By sub-cluster: its share of the demand and of the memory, to which it should be filled.
	demandShare, memoryShare []float64
	loads                    []load
	spent, budget            float64 // load time of services away from home, in seconds
	tried, limit             int     // exchanges
	random                   uint64
}

func newAssignmentSearch(p *AssignmentProblem) *assignmentSearch {
	n := len(p.Services)
	s := &assignmentSearch{p: p, home: make([]int32, n), at: make([]int32, n), demand: make([]float64, n), memory: make([]float64, n),
		held: make([]float64, n), room: make([]float64, n), loads: make([]load, len(p.SubClusters)), limit: p.effort(), random: 1}

	// Weights become shares of the whole, so that demand and memory can be added up and compared.
	var demand, memory, movable, gpus, bytes float64
	for i, v := range p.Services {
		s.demand[i], s.memory[i] = v.Demand, float64(v.Static)
		if p.Balance == ByRate {
			s.demand[i] = v.Rate
		}
		demand, memory = demand+s.demand[i], memory+s.memory[i]
		if v.Home != Nowhere {
			movable += v.Load.Seconds()
		}
	}
	for i, v := range p.Services {
		s.demand[i] /= max(demand, 1e-300)
		s.memory[i] /= max(memory, 1e-300)
		if p.Balance == ByDemand {
			s.held[i], s.room[i] = s.demand[i]*v.Batch.Seconds(), v.Room.Seconds()
			s.crowds = s.crowds || s.room[i] > 0
		}
	}

	// The bound on moves, with room for the rounding of sums.
	s.budget = movable * p.MoveShare * (1 + 1e-12)

	// A sub-cluster should get as much as it has of the GPUs and of the memory.
	for _, c := range p.SubClusters {
		gpus, bytes = gpus+float64(c.GPUs), bytes+float64(c.Memory)
	}

	for j, c := range p.SubClusters {
		s.demandShare = append(s.demandShare, float64(c.GPUs)/gpus)
		s.memoryShare = append(s.memoryShare, float64(c.Memory)/bytes)
		s.loads[j].largest, s.loads[j].impatient = Nowhere, Nowhere
		if demand > 0 {
			s.loads[j].demand = -1 // empty: all of its share is missing
		}
		if memory > 0 {
			s.loads[j].memory = -1
		}
	}

	// A service with a home begins there; placeHomeless places the others.
	for i, v := range p.Services {
		s.home[i] = Nowhere
		if v.Home != Nowhere {
			s.assignService(int32(i), v.Home)
		}
	}
	return s
}

// assignService adds a service that is nowhere.
func (s *assignmentSearch) assignService(i int32, j int) {
	c, v := &s.loads[j], &s.p.Services[i]
	s.home[i], s.at[i] = int32(j), int32(len(c.members))
	c.members = append(c.members, i)
	s.countService(i, j, 1)
	s.notePatience(c, i)

	switch {
	case v.Dynamic > c.dynamic || c.largest == Nowhere:
		c.dynamicNext, c.dynamic, c.largest = c.dynamic, v.Dynamic, i
	case v.Dynamic > c.dynamicNext:
		c.dynamicNext = v.Dynamic
	}
}

// removeService removes a service from where it is.
func (s *assignmentSearch) removeService(i int32) {
	j := int(s.home[i])
	c := &s.loads[j]

	// The last member takes the place of the one that leaves, so that a removal moves no other member.
	last := c.members[len(c.members)-1]
	c.members[s.at[i]], s.at[last] = last, s.at[i]
	c.members = c.members[:len(c.members)-1]

	s.countService(i, j, -1)
	s.home[i] = Nowhere
	s.forgetPatience(c, i)

	if v := &s.p.Services[i]; i != c.largest && v.Dynamic < c.dynamicNext {
		return
	}

	// One of the two largest dynamic memories has left, so both are looked for again.
	c.dynamic, c.dynamicNext, c.largest = 0, 0, Nowhere
	for _, k := range c.members {
		switch d := s.p.Services[k].Dynamic; {
		case d > c.dynamic || c.largest == Nowhere:
			c.dynamicNext, c.dynamic, c.largest = c.dynamic, d, k
		case d > c.dynamicNext:
			c.dynamicNext = d
		}
	}
}

// countService adds a service's numbers to those of a sub-cluster (sign 1), or subtracts them (−1).
func (s *assignmentSearch) countService(i int32, j int, sign float64) {
	c, v := &s.loads[j], &s.p.Services[i]
	c.demand += sign * s.demand[i] / s.demandShare[j]
	c.memory += sign * s.memory[i] / s.memoryShare[j]
	c.rate += sign * v.Rate
	c.held += sign * s.held[i]
	c.static += int64(sign) * v.Static

	if v.Home != Nowhere && v.Home != j {
		s.spent += sign * v.Load.Seconds()
	}
}

// exchangeServices makes an exchange.
func (s *assignmentSearch) exchangeServices(x exchange) {
	i, k, p := x.i, x.k, int(s.home[x.i])
	s.removeService(i)
	if k != Nowhere {
		s.removeService(k)
		s.assignService(k, p)
	}
	s.assignService(i, x.q)
}

// moveCost is what an exchange adds to spent.
func (s *assignmentSearch) moveCost(i, k int32, q int) float64 {
	cost := func(i int32, from, to int) float64 {
		switch v := &s.p.Services[i]; {
		case v.Home == Nowhere || from == to:
			return 0
		case v.Home == from:
			return v.Load.Seconds()
		case v.Home == to:
			return -v.Load.Seconds()
		}
		return 0
	}

	// Coming home gives back what leaving cost.
	p := int(s.home[i])
	sum := cost(i, p, q)
	if k != Nowhere {
		sum += cost(k, q, p)
	}
	return sum
}

// overload returns how far a sub-cluster would be beyond its limits, relative to them, if one service left and another came;
// either may be Nowhere.
func (s *assignmentSearch) overload(j int, leaves, comes int32) float64 {
	// The two largest dynamic memories are known, so no member need be looked at.
	c, limit := &s.loads[j], &s.p.SubClusters[j]
	static, dynamic, rate := c.static, c.dynamic, c.rate

	if leaves != Nowhere {
		v := &s.p.Services[leaves]
		static, rate = static-v.Static, rate-v.Rate
		if leaves == c.largest {
			dynamic = c.dynamicNext
		}
	}
	if comes != Nowhere {
		v := &s.p.Services[comes]
		static, rate, dynamic = static+v.Static, rate+v.Rate, max(dynamic, v.Dynamic)
	}

	over := max(0, float64(static+dynamic-limit.Memory)/float64(limit.Memory))
	if limit.RateMax > 0 {
		over += max(0, rate/limit.RateMax-1-1e-9)
	}
	return over
}

// violation is the sum of all overloads: 0 for a feasible assignment.
func (s *assignmentSearch) violation() float64 {
	sum := 0.0
	for j := range s.loads {
		sum += s.overload(j, Nowhere, Nowhere)
	}
	return sum
}

// objective is the paper's ΔR/R̄ + ΔS/S̄.
func (s *assignmentSearch) objective() float64 {
	var demand, memory float64
	for j := range s.loads {
		demand = max(demand, s.excess(s.loadAfter(j, Nowhere, Nowhere)))
		memory = max(memory, abs(s.loads[j].memory))
	}
	return demand + memory
}

// excess is what counts of a load's deviation. Where services crowd, the sum of all loads is not given, and a sub-cluster
// with less than its share harms nobody.
func (s *assignmentSearch) excess(deviation float64) float64 {
	if s.crowds {
		return deviation
	}
	return abs(deviation)
}

func abs(x float64) float64 { return max(x, -x) }

// assignment reports where the search stands.
func (s *assignmentSearch) assignment() Assignment {
	a := Assignment{Home: slices.Clone(s.home), Tried: s.tried}
	movable, moved := 0.0, 0.0
	for i, v := range s.p.Services {
		if v.Home == Nowhere {
			continue
		}
		movable += v.Load.Seconds()
		if v.Home != int(s.home[i]) {
			a.Moved++
			moved += v.Load.Seconds()
		}
	}
	if moved > 0 {
		a.MovedShare = moved / movable
	}

	// Deviations are relative to a sub-cluster's share, so their range is (max − min)/average.
	first := s.loads[0]
	least, most := first, first
	for _, c := range s.loads {
		least.demand, most.demand = min(least.demand, c.demand), max(most.demand, c.demand)
		least.memory, most.memory = min(least.memory, c.memory), max(most.memory, c.memory)
	}
	a.ImbalanceDemand, a.ImbalanceMemory = most.demand-least.demand, most.memory-least.memory
	return a
}
