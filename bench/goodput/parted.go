package goodput

import (
	"fmt"
	"math"
	"sort"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// partedGPUs are 20 sub-clusters of 16 GPUs.
const partedGPUs = 320

// partedSettings are five, ten and twenty times figure 6's cluster of the 1080 Ti zoo, as one cluster and in sub-clusters.
func partedSettings() []Setting {
	var out []Setting
	for _, parts := range []int{1, 4, 10, 20} {
		out = append(out, partedSetting(fmt.Sprintf("parted-%d", parts), 5, parts))
	}
	for _, copies := range []int{10, 20} {
		for _, parts := range []int{1, 20} {
			out = append(out, partedSetting(fmt.Sprintf("parted-%d-%d", partedGPUs/5*copies, parts), copies, parts))
		}
	}
	return out
}

// partedSetting returns a setting with copies of the zoo, on 64 GPUs each, in parts sub-clusters.
func partedSetting(name string, copies, parts int) Setting {
	zoo := profile.GTX1080Ti()
	var models []profile.Entry
	for i := range copies * len(zoo) {
		e := zoo[i%len(zoo)]
		e.Name = fmt.Sprintf("%s-%d", e.Name, i/len(zoo))
		models = append(models, e)
	}

	s := evenSetting(name, models, partedGPUs/5*copies, arrivals.Poisson)
	s.SubClusters = parts
	return s
}

// part returns the sub-cluster of each model and of each GPU; nil for a single cluster.
func (s Setting) part() (homes []int32, kinds []uint8, err error) {
	if s.SubClusters < 2 {
		return nil, nil, nil
	}

	// Memory is neither limited nor balanced: the question is the cost of sharing GPUs among fewer models.
	p := plan.AssignmentProblem{MoveShare: 1}
	for range s.SubClusters {
		p.SubClusters = append(p.SubClusters, plan.SubCluster{GPUs: s.GPUs / s.SubClusters, Memory: 1})
	}

	// Use the demand of a load that the sub-clusters can nearly sustain: a request costs less as batches grow.
	rate, err := s.rateOfDemand(s.fullDemand())
	if err != nil {
		return nil, nil, err
	}
	for i, e := range s.Models {
		v, err := s.asService(e, rate*s.Share[i])
		if err != nil {
			return nil, nil, err
		}
		p.Services = append(p.Services, v)
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

// fullDemand is what sub-clusters of alike models are asked for at their goodput, in GPUs (decision 0364).
func (s Setting) fullDemand() float64 {
	return float64(s.GPUs) * (1 - 0.1/math.Sqrt(float64(s.GPUs/s.SubClusters)))
}

// rateOfDemand returns the rate at which models in sub-clusters ask for so many GPUs.
func (s Setting) rateOfDemand(gpus float64) (float64, error) {
	var failed error
	enough := sort.Search(2*int(s.Capacity()), func(rate int) bool {
		sum := 0.0
		for i, e := range s.Models {
			v, err := s.asService(e, float64(rate)*s.Share[i])
			if err != nil {
				failed = err
			}
			sum += v.Demand
		}
		return sum >= gpus
	})
	return float64(enough), failed
}

// asService describes a model to plan.Assign.
func (s Setting) asService(e profile.Entry, rate float64) (plan.Service, error) {
	table, err := e.Profile()
	if err != nil {
		return plan.Service{}, err
	}

	cost, err := plan.CostAmong(table, e.SLO, rate, s.GPUs/s.SubClusters)
	if err != nil {
		return plan.Service{}, err
	}

	_, batch, err := plan.Cost(table, e.SLO, rate)
	return plan.Service{Rate: rate, Demand: rate * cost, Home: plan.Nowhere, Batch: table.Exec(batch), Room: e.SLO - table.Exec(1)}, err
}
