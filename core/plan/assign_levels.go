package plan

import (
	"fmt"
	"math"
)

// FewestSubClusters returns how many sub-clusters the services need if each GPU has this memory, and each ranker this limit
// on requests/s (0: none). A cluster is divided no further than it must be, because large sub-clusters serve more with the same
// GPUs ((1 + 1/N)·ℓ < SLO).
func FewestSubClusters(services []Service, memory int64, rateMax float64) (int, error) {
	if memory < 1 {
		return 0, refuse("memory of a GPU", memory, "at least one byte")
	}

	static, rate := 0.0, 0.0
	for _, s := range services {
		static, rate = static+float64(s.Static), rate+s.Rate
	}
	least := math.Max(1, math.Ceil(static/float64(memory)))
	if rateMax > 0 {
		least = math.Max(least, math.Ceil(rate/rateMax))
	}

	// Homes do not matter: the question is how many sub-clusters there must be, not who moves.
	free := make([]Service, len(services))
	for i, s := range services {
		free[i] = s
		free[i].Home = Nowhere
	}

	var last error
	for n := int(math.Min(least, gpusMax)); n <= max(len(services), int(least)); n++ {
		p := AssignmentProblem{Services: free, SubClusters: make([]SubCluster, n), MoveShare: 1}
		for j := range p.SubClusters {
			p.SubClusters[j] = SubCluster{GPUs: 1, Memory: memory, RateMax: rateMax}
		}

		if last = p.validate(); last != nil {
			return 0, last
		}
		if last = p.refuteTotals(); last != nil {
			continue
		}

		// Feasibility is enough here, so nothing is balanced.
		s := newAssignmentSearch(&p)
		s.placeHomeless()
		s.repairLimits()
		if s.violation() == 0 {
			return n, nil
		}
		last = s.explainViolation()
	}
	return 0, last
}

// AssignHierarchy assigns services to schedulers and, within each scheduler, to its sub-clusters: the
// same program one level up (Symphony §4.7). scheduler names the scheduler of each sub-cluster, 0 to
// the largest without gaps; rateMax limits the requests/s at one scheduler, 0: no limit. The bound on
// moves holds over both levels together.
func AssignHierarchy(p AssignmentProblem, scheduler []int, rateMax float64) (Assignment, error) {
	if err := p.validate(); err != nil {
		return Assignment{}, err
	}
	schedulers, err := countSchedulers(&p, scheduler)
	if err != nil {
		return Assignment{}, err
	}

	// The upper level comes first, because its moves count towards the same bound as those within the schedulers.
	top, err := Assign(p.upperLevel(scheduler, schedulers, rateMax))
	if err != nil {
		return Assignment{}, fmt.Errorf("schedulers: %w", err)
	}

	// Each scheduler's services are assigned to its own sub-clusters, independently of the others.
	all := newAssignmentSearch(&p)
	home := make([]int32, len(p.Services))
	for h := range schedulers {
		lower, services, clusters := p.lowerLevel(scheduler, top, h)
		a, err := Assign(lower)
		if err != nil {
			return Assignment{}, fmt.Errorf("scheduler %d: %w", h, numberAnew(err, services))
		}
		for i, service := range services {
			home[service] = int32(clusters[a.Home[i]])
		}
		all.tried += a.Tried
	}

	// restoreHomes moves services, so those without a home get theirs first.
	for i := range all.home {
		if all.home[i] == Nowhere {
			all.assignService(int32(i), int(home[i]))
		}
	}
	all.restoreHomes(home)
	return all.assignment(), nil
}

func countSchedulers(p *AssignmentProblem, scheduler []int) (int, error) {
	if len(scheduler) != len(p.SubClusters) {
		return 0, refuse("number of schedulers' sub-clusters", len(scheduler), fmt.Sprintf("one entry for each of %d", len(p.SubClusters)))
	}

	seen := make([]bool, len(scheduler))
	most := 0
	for j, h := range scheduler {
		if h < 0 || h >= len(scheduler) {
			return 0, refuse(fmt.Sprintf("sub-cluster %d: scheduler", j), h, fmt.Sprintf("0 to %d", len(scheduler)-1))
		}
		seen[h], most = true, max(most, h+1)
	}

	for h := range most {
		if !seen[h] {
			return 0, refuse(fmt.Sprintf("scheduler %d", h), "without sub-clusters", "numbers without gaps")
		}
	}
	return most, nil
}

// upperLevel returns the problem of assigning services to schedulers. A scheduler has the memory of all its sub-clusters, less
// the dynamic memory that each of them but one must keep free.
func (p *AssignmentProblem) upperLevel(scheduler []int, schedulers int, rateMax float64) AssignmentProblem {
	upper := *p
	upper.Services = make([]Service, len(p.Services))
	var dynamic int64
	for i, s := range p.Services {
		dynamic = max(dynamic, s.Dynamic)
		if s.Home != Nowhere {
			s.Home = scheduler[s.Home]
		}
		upper.Services[i] = s
	}

	upper.SubClusters = make([]SubCluster, schedulers)
	for j, c := range p.SubClusters {
		u := &upper.SubClusters[scheduler[j]]
		if u.GPUs > 0 {
			u.Memory -= dynamic
		}
		u.GPUs, u.Memory, u.RateMax = u.GPUs+c.GPUs, u.Memory+c.Memory, rateMax
	}
	return upper
}

// lowerLevel returns the problem of one scheduler, with its services and sub-clusters. A service that comes from another
// scheduler has no home here, since the upper level already counted its move. What the upper level left of the bound on moves
// is divided among the schedulers by the load time of the services that stay.
func (p *AssignmentProblem) lowerLevel(scheduler []int, top Assignment, h int) (lower AssignmentProblem, services, clusters []int) {
	lower = *p
	lower.Services, lower.SubClusters = nil, nil

	within := make([]int, len(scheduler))
	for j, c := range p.SubClusters {
		if scheduler[j] == h {
			within[j] = len(clusters)
			clusters = append(clusters, j)
			lower.SubClusters = append(lower.SubClusters, c)
		}
	}

	var present, stayed float64
	for i, s := range p.Services {
		stays := s.Home != Nowhere && scheduler[s.Home] == int(top.Home[i])
		if s.Home != Nowhere {
			present += s.Load.Seconds()
		}
		if stays {
			stayed += s.Load.Seconds()
		}

		if int(top.Home[i]) != h {
			continue
		}
		if stays {
			s.Home = within[s.Home]
		} else {
			s.Home = Nowhere
		}

		services = append(services, i)
		lower.Services = append(lower.Services, s)
	}
	if stayed > 0 {
		lower.MoveShare = min(1, max(0, p.MoveShare-top.MovedShare)*present/stayed)
	}
	return lower, services, clusters
}
