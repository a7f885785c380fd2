package plan

import (
	"fmt"
	"time"
)

// Nowhere is the home of a service that no sub-cluster has.
const Nowhere = -1

// Service is a model or a family: what one sub-cluster serves whole.
type Service struct {
	Rate            float64       // requests/s
	Demand          float64       // GPUs: rate × GPU time per request (Cost)
	Static, Dynamic int64         // bytes on each GPU: while loaded; besides, while a batch runs
	Home            int           // the sub-cluster that has it now, or Nowhere
	Load            time.Duration // loading and warming up on one GPU: what a move costs
	Batch           time.Duration // how long a batch at its target size keeps a GPU
	Room            time.Duration // how long a request alone could wait for a GPU: SLO − ℓ(1); 0: not told
}

// SubCluster is a set of GPUs of one kind that all hold the same services.
type SubCluster struct {
	GPUs    int
	Memory  int64   // bytes of one GPU
	RateMax float64 // requests/s that one ranker may be asked for; 0: no limit
}

// Balance is what is shared out in proportion to the GPUs.
type Balance int

// The balances.
const (
	ByDemand Balance = iota // GPU time, which is what GPUs have
	ByRate                  // requests/s, as Symphony's appendix A has it: right where all cost the same
)

// AssignmentProblem is Symphony's appendix A.1 with demand in place of rate, and GPUs of unequal
// number and memory.
type AssignmentProblem struct {
	Services    []Service
	SubClusters []SubCluster
	Balance     Balance
	// MoveShare is C_max: the load time of services that leave their home, as a share of the load
	// time of all services that have one. 0 keeps all where they are, 1 lets all move.
	MoveShare float64
	// Effort bounds the search, in exchanges tried; 0: 2 million and 2,000 for each service, some 50 ms
	// for 800 services.
	Effort int
}

// Assignment is a sub-cluster for each service.
type Assignment struct {
	Home  []int32 // by service
	Moved int     // services that left a home
	// MovedShare is what they cost, in terms of MoveShare.
	MovedShare float64
	// Imbalances are (max − min)/average over sub-clusters: of demand (or rate) per GPU, and of static
	// memory per byte.
	ImbalanceDemand, ImbalanceMemory float64
	Tried                            int // exchanges
}

// Sums of memory stay within 64 bits: so many services of at most 16 TiB each.
const (
	servicesMax = 1 << 18
	bytesMax    = 1 << 44
)

// Assign gives every service a sub-cluster, so that each GPU has room for its services (Σ static +
// max dynamic ≤ memory), no ranker is asked for more than its limit, no more than MoveShare moves, and
// the sum of the largest deviations of demand and of static memory is small.
//
// The search puts the largest service first where it fits best, moves and exchanges services until none of that helps, and
// then kicks. If services tell their room, the demand of a sub-cluster counts for more the longer its batches keep the
// impatient services waiting, and random exchanges follow.
//
// Assign fails with an InfeasibleError if a constraint cannot be met, or if the search does not meet it.
func Assign(p AssignmentProblem) (Assignment, error) {
	if err := p.validate(); err != nil {
		return Assignment{}, err
	}
	if err := p.refuteTotals(); err != nil {
		return Assignment{}, err
	}

	s := newAssignmentSearch(&p)
	s.placeHomeless()
	s.repairLimits()
	if s.violation() > 0 {
		return Assignment{}, s.explainViolation()
	}

	switch {
	case s.crowds && p.mayStartAnew():
		s.limit /= 8
		s.improveByKicks()
		s = s.orInBands()
	case s.crowds:
		s.limit /= 2 // an exchange takes twice the time to try
		s.improveByKicks()
	default:
		s.improveByKicks()
	}
	return s.assignment(), nil
}

func (p *AssignmentProblem) validate() error {
	switch {
	case len(p.SubClusters) == 0:
		return refuse("number of sub-clusters", 0, "at least one")
	case max(len(p.SubClusters), len(p.Services)) > servicesMax:
		return refuse("number of services or sub-clusters", max(len(p.SubClusters), len(p.Services)), fmt.Sprintf("at most %d", servicesMax))
	}

	if !(p.MoveShare >= 0 && p.MoveShare <= 1) {
		return refuse("move share", p.MoveShare, "0 to 1")
	}

	for j, c := range p.SubClusters {
		name := fmt.Sprintf("sub-cluster %d: ", j)
		switch {
		case c.GPUs < 1 || c.GPUs > gpusMax:
			return refuse(name+"GPUs", c.GPUs, fmt.Sprintf("1 to %d", gpusMax))
		case c.Memory < 1 || c.Memory > bytesMax:
			return refuse(name+"memory", c.Memory, "1 to 2⁴⁴ bytes")
		case !finite(c.RateMax):
			return refuse(name+"rate limit", c.RateMax, "a finite number of requests/s, 0 for none")
		}
	}

	for i, s := range p.Services {
		name := fmt.Sprintf("service %d: ", i)
		switch {
		case !finite(s.Rate):
			return refuse(name+"rate", s.Rate, "a finite number of requests/s, 0 or more")
		case !finite(s.Demand):
			return refuse(name+"demand", s.Demand, "a finite number of GPUs, 0 or more")
		case s.Static < 0 || s.Dynamic < 0 || s.Static > bytesMax || s.Dynamic > bytesMax:
			return refuse(name+"memory", fmt.Sprintf("%d static, %d dynamic", s.Static, s.Dynamic), "0 to 2⁴⁴ bytes")
		case s.Load < 0:
			return refuse(name+"load time", s.Load, "0 or more")
		case s.Batch < 0 || s.Room < 0:
			return refuse(name+"batch time and room", fmt.Sprintf("%v and %v", s.Batch, s.Room), "0 or more")
		case s.Home != Nowhere && (s.Home < 0 || s.Home >= len(p.SubClusters)):
			return refuse(name+"home", s.Home, fmt.Sprintf("Nowhere or 0 to %d", len(p.SubClusters)-1))
		}
	}
	return nil
}

// refuteTotals finds what no assignment can meet, without a search: a service that fits no GPU, and
// more than all sub-clusters together have room for.
func (p *AssignmentProblem) refuteTotals() error {
	var memoryMax, memorySum int64
	rateMax, rateSum, unlimited := 0.0, 0.0, false
	for _, c := range p.SubClusters {
		memoryMax, memorySum = max(memoryMax, c.Memory), memorySum+c.Memory
		rateMax, rateSum, unlimited = max(rateMax, c.RateMax), rateSum+c.RateMax, unlimited || c.RateMax == 0
	}

	var static int64
	rate := 0.0
	for i, s := range p.Services {
		if s.Static+s.Dynamic > memoryMax {
			return &ServiceError{i, &InfeasibleError{"memory on the largest GPU", float64(s.Static + s.Dynamic), float64(memoryMax), "bytes"}}
		}
		if s.Rate > rateMax && !unlimited {
			return &ServiceError{i, &InfeasibleError{"rate at one ranker", s.Rate, rateMax, "requests/s"}}
		}
		static, rate = static+s.Static, rate+s.Rate
	}

	if static > memorySum {
		return &InfeasibleError{"static memory of all services on all sub-clusters", float64(static), float64(memorySum), "bytes"}
	}
	if rate > rateSum && !unlimited {
		return &InfeasibleError{"rate of all services at all rankers", rate, rateSum, "requests/s"}
	}
	return nil
}
