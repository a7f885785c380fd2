package plan

import "time"

// groupTrunks groups the models of each trunk, because two sub-clusters would hold its parameters twice.
func (s *Snapshot) groupTrunks(models []int32) (groups [][]int32) {
	at := make([]int, len(s.Models)+1) // the group of each trunk, from 1
	for _, m := range models {
		trunk := s.Models[m].Trunk
		if trunk != 0 && at[trunk] > 0 {
			groups[at[trunk]-1] = append(groups[at[trunk]-1], m)
			continue
		}
		groups = append(groups, []int32{m})
		at[trunk] = len(groups)
	}
	return groups
}

// describeGroup describes what the models of one trunk, or one model, need in a pool.
func (s *Snapshot) describeGroup(pool int32, group []int32) Service {
	v := s.describeNeeds(pool, group[0])
	if len(group) == 1 {
		return v
	}

	// Their loads add up. The common part of their memory counts once.
	var w weight
	for i, m := range group {
		x := &s.Models[m]
		w.addModel(x.Static, x.Shared, x.Trunk)
		if i > 0 {
			other := s.describeNeeds(pool, m)
			v.Rate, v.Demand, v.Load, v.Dynamic = v.Rate+other.Rate, v.Demand+other.Demand, v.Load+other.Load, max(v.Dynamic, other.Dynamic)
		}
	}
	v.Static = w.static
	return v
}

// describeNeeds describes what a model needs in a pool.
func (s *Snapshot) describeNeeds(pool, m int32) Service {
	x := &s.Models[m]
	v := Service{Rate: s.rateIn(pool, m), Static: x.Static, Dynamic: x.Dynamic, Load: x.Load, Home: Nowhere}
	if int(pool) >= len(x.Profiles) || x.Profiles[pool] == nil {
		return v
	}

	// If no batch keeps the model's SLO, no GPU can serve its demand.
	if c, _, err := Cost(x.Profiles[pool], x.SLO, v.Rate); err == nil {
		v.Demand = v.Rate * c
	}
	return v
}

// rateIn returns the part of a model's rate that a pool gets: its share of the GPUs that have the model.
func (s *Snapshot) rateIn(pool, m int32) float64 {
	here, all := 0, 0
	for g, at := range s.Present[m] {
		if at == Absent {
			continue
		}
		all++
		if s.GPUs[g].Pool == pool {
			here++
		}
	}
	return s.Models[m].Rate * float64(here) / float64(all)
}

// addCrowding sets what Assign needs to know about waiting for a GPU in a sub-cluster of among GPUs (decision 0364): the
// group's demand including that wait, the mean time of its batches weighted by demand, and the room of its least patient
// model.
func (s *Snapshot) addCrowding(v *Service, pool int32, group []int32, among int) {
	demand, held := 0.0, 0.0
	for _, m := range group {
		x, rate := &s.Models[m], s.rateIn(pool, m)
		if int(pool) >= len(x.Profiles) || x.Profiles[pool] == nil || rate == 0 {
			continue // a model without requests waits for nothing
		}

		p := x.Profiles[pool]
		cost, err := CostAmong(p, x.SLO, rate, among)
		if err != nil {
			continue // as in describeNeeds
		}

		_, batch, _ := Cost(p, x.SLO, rate)
		demand += rate * cost
		held += rate * cost * p.Exec(batch).Seconds()

		// A room of 0 would mean that it is unknown.
		room := max(1, x.SLO-p.Exec(1))
		if v.Room == 0 || room < v.Room {
			v.Room = room
		}
	}

	v.Demand = demand
	if demand > 0 {
		v.Batch = time.Duration(held / demand * 1e9)
	}
}
