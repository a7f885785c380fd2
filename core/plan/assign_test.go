package plan

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// drawAssignment draws services and sub-clusters of uneven size, loosely or tightly packed.
func drawAssignment(rng *rand.Rand) AssignmentProblem {
	p := AssignmentProblem{MoveShare: rng.Float64(), Effort: 20_000, Balance: Balance(rng.IntN(2))}
	var static int64
	rate := 0.0
	for range rng.IntN(40) {
		s := Service{Rate: rng.ExpFloat64() * 100, Demand: rng.ExpFloat64(), Static: rng.Int64N(1000), Dynamic: rng.Int64N(500), Home: Nowhere,
			Load: time.Duration(rng.IntN(3)) * time.Second}
		static, rate = static+s.Static, rate+s.Rate
		p.Services = append(p.Services, s)
	}
	parts := 1 + rng.IntN(5)
	for range parts {
		c := SubCluster{GPUs: 1 + rng.IntN(8), Memory: 1 + rng.Int64N(2000) + static*int64(1+rng.IntN(3))/int64(parts)}
		if rng.IntN(3) == 0 {
			c.RateMax = rate * (0.5 + rng.Float64()) / float64(parts)
		}
		p.SubClusters = append(p.SubClusters, c)
	}
	for i := range p.Services {
		if rng.IntN(2) == 0 {
			p.Services[i].Home = rng.IntN(parts)
		}
	}
	for i := range p.Services { // some tell how long they may wait, some do not
		if rng.IntN(3) > 0 {
			p.Services[i].Batch, p.Services[i].Room = time.Duration(rng.IntN(300))*ms, time.Duration(rng.IntN(300))*ms
		}
	}
	return p
}

func checkAssigned(t *testing.T, p AssignmentProblem, a Assignment, err error) bool {
	t.Helper()
	var infeasible *InfeasibleError
	if errors.As(err, &infeasible) {
		if !(infeasible.Needed > infeasible.Allowed) {
			t.Fatalf("%v: not a lack of anything", err)
		}
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckAssignment(p, a); err != nil {
		t.Fatal(err)
	}
	return true
}

func TestAssignmentsPassTheChecker(t *testing.T) {
	feasible := 0
	for seed := range uint64(600) {
		p := drawAssignment(rand.New(rand.NewPCG(seed, 2)))
		a, err := Assign(p)
		if checkAssigned(t, p, a, err) {
			feasible++
		}
		if seed%10 > 0 {
			continue
		}
		again, _ := Assign(p)
		if len(again.Home) != len(a.Home) || again.ImbalanceDemand != a.ImbalanceDemand {
			t.Fatalf("seed %d: the same snapshot gave two plans", seed)
		}
	}
	if feasible < 180 || feasible > 590 {
		t.Errorf("%d of 600 draws are feasible: the test tries too little", feasible)
	}
}

// TestAssignFindsWhatEnumerationFinds compares feasibility and objective with all assignments there are.
func TestAssignFindsWhatEnumerationFinds(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := AssignmentProblem{MoveShare: 1, SubClusters: []SubCluster{{4, 1500, 0}, {4, 1500, 0}, {4, 1500, 0}}, Effort: 60_000}
		for range 7 {
			p.Services = append(p.Services, Service{Demand: rng.ExpFloat64(), Static: 100 + rng.Int64N(700), Dynamic: rng.Int64N(400), Home: Nowhere})
		}

		best := math.Inf(1)
		for code := range 2187 {
			a := Assignment{Home: make([]int32, 7)}
			s := newAssignmentSearch(&p)
			for i := range a.Home {
				a.Home[i] = int32(code % 3)
				s.assignService(int32(i), code%3)
				code /= 3
			}
			if s.violation() == 0 {
				best = min(best, s.objective())
			}
		}
		a, err := Assign(p)
		if !checkAssigned(t, p, a, err) {
			if !math.IsInf(best, 1) {
				t.Errorf("seed %d: %v, but an assignment exists", seed, err)
			}
			continue
		}
		s := newAssignmentSearch(&p)
		for i, j := range a.Home {
			s.assignService(int32(i), int(j))
		}
		if s.objective() > best*1.01+1e-9 {
			t.Errorf("seed %d: objective %v, the optimum is %v", seed, s.objective(), best)
		}
	}
}

func TestAssignKeepsHomesWithinTheBound(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	p := AssignmentProblem{SubClusters: []SubCluster{{8, 1 << 30, 0}, {8, 1 << 30, 0}}, MoveShare: 0}
	for i := range 60 {
		p.Services = append(p.Services, Service{Demand: rng.ExpFloat64(), Static: 100, Home: i % 2, Load: time.Second})
	}
	p.Services[0].Demand = 12
	still, err := Assign(p)
	if err != nil || still.Moved != 0 {
		t.Fatalf("%d moved, %v; want nobody to move", still.Moved, err)
	}
	p.MoveShare = 0.25
	moved, err := Assign(p)
	if !checkAssigned(t, p, moved, err) || moved.Moved == 0 || moved.Moved > 15 || moved.ImbalanceDemand > still.ImbalanceDemand/5 {
		t.Errorf("%d moved, imbalance %v of %v: want at most 15, and a fifth", moved.Moved, moved.ImbalanceDemand, still.ImbalanceDemand)
	}
}

// TestBalanceByRateIsThePapersForm has cheap and dear requests: the paper's form cannot tell them
// apart.
func TestBalanceByRateIsThePapersForm(t *testing.T) {
	p := AssignmentProblem{SubClusters: []SubCluster{{8, 1 << 30, 0}, {8, 1 << 30, 0}}, MoveShare: 1}
	for i := range 40 {
		cost := 0.001
		if i < 20 {
			cost = 0.01
		}
		rate := 50 + float64(i%20)
		p.Services = append(p.Services, Service{Rate: rate, Demand: rate * cost, Static: 1, Home: Nowhere})
	}
	demand, err := Assign(p)
	if err != nil || demand.ImbalanceDemand > 0.01 {
		t.Errorf("by demand: %v, %v", demand.ImbalanceDemand, err)
	}
	p.Balance = ByRate
	rate, err := Assign(p)
	if !checkAssigned(t, p, rate, err) || rate.ImbalanceDemand > 0.01 {
		t.Errorf("by rate: %v", rate.ImbalanceDemand)
	}
}

func TestAssignRefuses(t *testing.T) {
	good := func() AssignmentProblem {
		return AssignmentProblem{Services: []Service{{1, 1, 10, 10, Nowhere, 0, 0, 0}, {1, 1, 10, 10, Nowhere, 0, 0, 0}}, SubClusters: []SubCluster{{1, 30, 0}}, MoveShare: 1}
	}
	for want, spoil := range map[string]func(*AssignmentProblem){
		"number of sub-clusters is 0":                    func(p *AssignmentProblem) { p.SubClusters = nil },
		"sub-cluster 0: GPUs is 0":                       func(p *AssignmentProblem) { p.SubClusters[0].GPUs = 0 },
		"sub-cluster 0: memory is 0":                     func(p *AssignmentProblem) { p.SubClusters[0].Memory = 0 },
		"sub-cluster 0: rate limit":                      func(p *AssignmentProblem) { p.SubClusters[0].RateMax = math.NaN() },
		"service 1: rate is NaN":                         func(p *AssignmentProblem) { p.Services[1].Rate = math.NaN() },
		"service 1: demand is +Inf":                      func(p *AssignmentProblem) { p.Services[1].Demand = math.Inf(1) },
		"service 0: memory is -1":                        func(p *AssignmentProblem) { p.Services[0].Static = -1 },
		"service 0: home is 1":                           func(p *AssignmentProblem) { p.Services[0].Home = 1 },
		"service 0: load time":                           func(p *AssignmentProblem) { p.Services[0].Load = -1 },
		"service 1: batch time and room is -1ns":         func(p *AssignmentProblem) { p.Services[1].Batch = -1 },
		"move share is NaN":                              func(p *AssignmentProblem) { p.MoveShare = math.NaN() },
		"service 1: plan: memory on the largest GPU: 40": func(p *AssignmentProblem) { p.Services[1].Static = 30 },
		"static memory of all services": func(p *AssignmentProblem) {
			p.SubClusters[0].Memory = 19
			p.Services[0].Dynamic, p.Services[1].Dynamic = 0, 0
		},
		"memory of sub-cluster 0: 30 bytes needed": func(p *AssignmentProblem) { p.SubClusters[0].Memory = 29 },
		"rate of all services at all rankers: 2":   func(p *AssignmentProblem) { p.SubClusters[0].RateMax = 1.5 },
		"service 0: plan: rate at one ranker: 1":   func(p *AssignmentProblem) { p.SubClusters[0].RateMax = 0.5 },
		"must move, as a share of all: 0.5 (share) n": func(p *AssignmentProblem) {
			p.SubClusters = []SubCluster{{1, 25, 0}, {1, 25, 0}}
			p.Services[0].Home, p.Services[1].Home, p.MoveShare = 0, 0, 0.1
			p.Services[0].Load, p.Services[1].Load = time.Second, time.Second
		},
	} {
		p := good()
		spoil(&p)
		if _, err := Assign(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}

	// What is no error: no services, and services that nobody asks.
	for _, p := range []AssignmentProblem{{SubClusters: []SubCluster{{1, 1, 0}}}, {Services: []Service{{Home: Nowhere}}, SubClusters: []SubCluster{{1, 1, 0}, {1, 1, 0}}}} {
		a, err := Assign(p)
		checkAssigned(t, p, a, err)
	}
}

func TestFewestSubClusters(t *testing.T) {
	services := []Service{{1, 1, 60, 10, 0, 0, 0, 0}, {1, 1, 50, 10, 0, 0, 0, 0}, {1, 1, 40, 10, 0, 0, 0, 0}, {1, 1, 30, 10, 0, 0, 0, 0}}
	for memory, want := range map[int64]int{190: 1, 100: 2, 70: 4} {
		if n, err := FewestSubClusters(services, memory, 0); err != nil || n != want {
			t.Errorf("%d bytes: %d sub-clusters, %v; want %d", memory, n, err, want)
		}
	}
	if n, err := FewestSubClusters(services, 1000, 1); err != nil || n != 4 {
		t.Errorf("a ranker for one request/s: %d sub-clusters, %v; want 4", n, err)
	}
	if _, err := FewestSubClusters(services, 69, 0); err == nil || !strings.Contains(err.Error(), "service 0: plan: memory on the largest GPU") {
		t.Errorf("error %v, want that service 0 fits no GPU", err)
	}
}

func TestHierarchyKeepsBothLevelsLimits(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 5))
		p := AssignmentProblem{MoveShare: 1, Effort: 200_000}
		scheduler := []int{0, 0, 0, 1, 1, 2}
		rate := 0.0
		for range 120 {
			s := Service{Rate: 50 + rng.ExpFloat64()*100, Demand: rng.ExpFloat64(), Static: 50 + rng.Int64N(100), Dynamic: rng.Int64N(500), Home: Nowhere, Load: time.Second}
			rate += s.Rate
			p.Services = append(p.Services, s)
		}
		for range scheduler {
			p.SubClusters = append(p.SubClusters, SubCluster{GPUs: 16, Memory: 4000})
		}
		a, err := AssignHierarchy(p, scheduler, rate*0.55)
		if !checkAssigned(t, p, a, err) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if a.ImbalanceDemand > 0.2 {
			t.Errorf("seed %d: imbalance %v", seed, a.ImbalanceDemand)
		}

		// An epoch later, a tenth may move.
		for i := range p.Services {
			p.Services[i].Home = int(a.Home[i])
			p.Services[i].Demand *= 0.7 + 0.6*rng.Float64()
		}
		p.MoveShare = 0.1
		b, err := AssignHierarchy(p, scheduler, rate*0.55)
		if !checkAssigned(t, p, b, err) || b.Moved > 12 {
			t.Errorf("seed %d: %d of 120 moved", seed, b.Moved)
		}
	}
	if _, err := AssignHierarchy(AssignmentProblem{SubClusters: []SubCluster{{1, 1, 0}, {1, 1, 0}}}, []int{1, 1}, 0); err == nil || !strings.Contains(err.Error(), "scheduler 0 is without") {
		t.Errorf("error %v, want one about scheduler 0", err)
	}
}

func FuzzAssign(f *testing.F) {
	f.Add(uint64(1), 1.0, int64(10), 3)
	f.Add(uint64(2), math.NaN(), int64(-1), -1)
	f.Fuzz(func(t *testing.T, seed uint64, x float64, bytes int64, home int) {
		p := drawAssignment(rand.New(rand.NewPCG(seed, 6)))
		p.Effort = 2000
		if len(p.Services) > 0 { // one service is whatever the fuzzer wants
			p.Services[0] = Service{Rate: x, Demand: x, Static: bytes, Dynamic: bytes / 2, Home: home, Load: time.Duration(bytes)}
		}
		a, err := Assign(p)
		if err != nil {
			return
		}
		if err := CheckAssignment(p, a); err != nil {
			t.Fatal(err)
		}
	})
}

// TestTheHierarchyNamesItsOwnService: a service keeps its number in an error of one scheduler's own problem.
func TestTheHierarchyNamesItsOwnService(t *testing.T) {
	err := numberAnew(&ServiceError{1, &InfeasibleError{"memory", 2, 1, "bytes"}}, []int{4, 7})
	if of, ok := errors.AsType[*ServiceError](err); !ok || of.Service != 7 {
		t.Errorf("%v, want service 7", err)
	}
}
