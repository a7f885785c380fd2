package goodput

import (
	"fmt"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// partedGPUs are 20 sub-clusters of 16 GPUs.
const partedGPUs = 320

// partedSettings are five times figure 6's cluster of the 1080 Ti zoo, as one cluster and in sub-clusters.
func partedSettings() []Setting {
	zoo := profile.GTX1080Ti()
	var models []profile.Entry
	for i := range 5 * len(zoo) {
		e := zoo[i%len(zoo)]
		e.Name = fmt.Sprintf("%s-%d", e.Name, i/len(zoo))
		models = append(models, e)
	}

	var out []Setting
	for _, parts := range []int{1, 4, 10, 20} {
		e := evenSetting(fmt.Sprintf("parted-%d", parts), models, partedGPUs, arrivals.Poisson)
		e.SubClusters = parts
		out = append(out, e)
	}
	return out
}

// part returns the sub-cluster of each model and of each GPU; nil for a single cluster.
func (s Setting) part() (homes []int32, kinds []uint8, err error) {
	if s.SubClusters < 2 {
		return nil, nil, nil
	}

	// Memory is unlimited: the question is the cost of sharing GPUs among fewer models.
	p := plan.AssignmentProblem{MoveShare: 1}
	for range s.SubClusters {
		p.SubClusters = append(p.SubClusters, plan.SubCluster{GPUs: s.GPUs / s.SubClusters, Memory: int64(len(s.Models))})
	}

	// Use the demand of a load near the capacity: a model's share of the cost falls as its batches grow.
	rate := 0.9 * s.Capacity()
	for i, e := range s.Models {
		table, err := e.Profile()
		if err != nil {
			return nil, nil, err
		}
		cost, _, err := plan.Cost(table, e.SLO, rate*s.Share[i])
		if err != nil {
			return nil, nil, err
		}
		p.Services = append(p.Services, plan.Service{Rate: rate * s.Share[i], Demand: rate * s.Share[i] * cost, Static: 1, Home: plan.Nowhere})
	}

	a, err := plan.Assign(p)
	if err != nil {
		return nil, nil, err
	}
	for g := range s.GPUs {
		kinds = append(kinds, uint8(g*s.SubClusters/s.GPUs))
	}
	return a.Home, kinds, nil
}
