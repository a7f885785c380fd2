package plan

import "fmt"

// CheckAssignment reports the first constraint that an assignment breaks, and numbers in it that do
// not follow from its homes.
func CheckAssignment(p AssignmentProblem, a Assignment) error {
	if len(a.Home) != len(p.Services) {
		return fmt.Errorf("%d homes for %d services", len(a.Home), len(p.Services))
	}

	if err := checkMoves(&p, &a); err != nil {
		return err
	}

	var totalWeight, totalStatic, totalGPUs, totalMemory float64
	weight := make([]float64, len(p.SubClusters))
	static := make([]int64, len(p.SubClusters))

	// Sum every sub-cluster from the homes alone: a checker must not trust the sums of the plan.
	for j, c := range p.SubClusters {
		var dynamic int64
		rate := 0.0
		for i, s := range p.Services {
			if int(a.Home[i]) != j {
				continue
			}
			dynamic = max(dynamic, s.Dynamic)
			static[j] += s.Static
			rate += s.Rate
			if p.Balance == ByRate {
				weight[j] += s.Rate
			} else {
				weight[j] += s.Demand
			}
		}
		if static[j]+dynamic > c.Memory {
			return fmt.Errorf("sub-cluster %d: %d + %d bytes on GPUs of %d", j, static[j], dynamic, c.Memory)
		}
		if c.RateMax > 0 && rate > c.RateMax*(1+1e-9) {
			return fmt.Errorf("sub-cluster %d: %v requests/s at a ranker of %v", j, rate, c.RateMax)
		}
		totalWeight, totalStatic = totalWeight+weight[j], totalStatic+float64(static[j])
		totalGPUs, totalMemory = totalGPUs+float64(c.GPUs), totalMemory+float64(c.Memory)
	}

	// Per GPU and per byte, as shares of the average sub-cluster.
	spread := func(part func(j int) float64) float64 {
		least, most := part(0), part(0)
		for j := range p.SubClusters {
			least, most = min(least, part(j)), max(most, part(j))
		}
		return most - least
	}

	demand, memory := 0.0, 0.0
	if totalWeight > 0 {
		demand = spread(func(j int) float64 { return weight[j] * totalGPUs / float64(p.SubClusters[j].GPUs) / totalWeight })
	}
	if totalStatic > 0 {
		memory = spread(func(j int) float64 {
			return float64(static[j]) * totalMemory / float64(p.SubClusters[j].Memory) / totalStatic
		})
	}

	if abs(demand-a.ImbalanceDemand) > 1e-6 || abs(memory-a.ImbalanceMemory) > 1e-6 {
		return fmt.Errorf("imbalance of demand %v and of memory %v, the assignment says %v and %v", demand, memory, a.ImbalanceDemand, a.ImbalanceMemory)
	}
	return nil
}

// checkMoves checks that every service is somewhere, and the bound on moves.
func checkMoves(p *AssignmentProblem, a *Assignment) error {
	var present, left float64
	moved := 0
	for i, s := range p.Services {
		if a.Home[i] < 0 || int(a.Home[i]) >= len(p.SubClusters) {
			return fmt.Errorf("service %d is in sub-cluster %d of %d", i, a.Home[i], len(p.SubClusters))
		}
		if s.Home == Nowhere {
			continue
		}
		present += s.Load.Seconds()
		if s.Home != int(a.Home[i]) {
			moved++
			left += s.Load.Seconds()
		}
	}

	if left > present*p.MoveShare*(1+1e-9) {
		return fmt.Errorf("%v s of load time moved of %v s, want a share of %v", left, present, p.MoveShare)
	}
	if moved != a.Moved || left > 0 && abs(left/present-a.MovedShare) > 1e-9 {
		return fmt.Errorf("%d services and a share of %v moved, the assignment says %d and %v", moved, left/present, a.Moved, a.MovedShare)
	}
	return nil
}
