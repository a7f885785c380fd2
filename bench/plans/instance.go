package plans

import (
	"math"
	"math/rand/v2"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/profile"
)

// memories are static and dynamic megabytes of the six models in Symphony's table 1, the only models with published
// memory.
var memories = [][2]int64{{99, 2172}, {88, 1519}, {230, 3386}, {84, 2653}, {170, 2798}, {822, 6200}}

const megabyte = 1_000_000

// PartitionInstance draws an instance of Symphony's figure 15: models from the 1080 Ti zoo with the memories of table
// 1, rates from an exponential distribution, sub-clusters of equal size. A model's demand is its cost by the zoo's
// profile at its target batch. GPUs have room for 1.5 times the average sub-cluster and the largest dynamic memory.
func PartitionInstance(models, subClusters int, seed uint64) plan.AssignmentProblem {
	rng := rand.New(rand.NewPCG(seed, 15))
	zoo := profile.GTX1080Ti()
	p := plan.AssignmentProblem{Services: make([]plan.Service, models), MoveShare: 1}

	var static int64
	demand := 0.0
	for i := range p.Services {
		s := &p.Services[i]
		memory := memories[rng.IntN(len(memories))]
		*s = plan.Service{Rate: 100 * rng.ExpFloat64(), Static: memory[0] * megabyte, Dynamic: memory[1] * megabyte, Home: plan.Nowhere,
			Load: time.Duration(memory[0]) * 5 * time.Millisecond}
		s.Demand = s.Rate * costOf(zoo[rng.IntN(len(zoo))], s.Rate)
		static, demand = static+s.Static, demand+s.Demand
	}

	// Figure 15 has equal sub-clusters, each with the GPUs that the average one needs.
	gpus := max(1, plan.DefaultTargets().GPUsFor(demand/float64(subClusters)))
	for range subClusters {
		memory := static*3/2/int64(subClusters) + memories[5][1]*megabyte
		p.SubClusters = append(p.SubClusters, plan.SubCluster{GPUs: gpus, Memory: memory})
	}
	return p
}

func costOf(e profile.Entry, rate float64) float64 {
	p, err := e.Profile()
	if err != nil {
		panic(err) // the zoo's entries are tested in core/profile
	}
	c, _, err := plan.Cost(p, e.SLO, rate)
	if err != nil {
		panic(err)
	}
	return c
}

// Drift returns the problem of the following epoch: all services are where a placed them, every rate and demand has
// changed by a factor of e^(deviation·normal), and at most moveShare may move.
func Drift(p plan.AssignmentProblem, a plan.Assignment, deviation, moveShare float64, seed uint64) plan.AssignmentProblem {
	rng := rand.New(rand.NewPCG(seed, 16))
	services := make([]plan.Service, len(p.Services))
	for i, s := range p.Services {
		// Rates and demands drift together: the cost of a request is unchanged.
		factor := math.Exp(deviation * rng.NormFloat64())
		s.Rate, s.Demand, s.Home = s.Rate*factor, s.Demand*factor, int(a.Home[i])
		services[i] = s
	}
	p.Services, p.MoveShare = services, moveShare
	return p
}
