package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// drawSnapshot draws pools of GPUs that have models, each on the GPUs of one sub-cluster.
func drawSnapshot(rng *rand.Rand) Snapshot {
	s := Snapshot{MoveShare: rng.Float64(), Parts: rng.IntN(3), Effort: 2000}
	table := []time.Duration{2e6, 3e6, 4e6, 5e6}
	p, _ := profile.New(table)
	for pool := range int32(1 + rng.IntN(2)) {
		for range 3 + rng.IntN(6) {
			s.GPUs = append(s.GPUs, PlacedGPU{Pool: pool, Part: 2*pool + int32(rng.IntN(2)), Memory: 2000 + rng.Int64N(1000)})
		}
	}

	for range 1 + rng.IntN(12) {
		s.Models = append(s.Models, PlacedModel{Rate: 100 * rng.Float64(), SLO: 50e6, Static: 50 + rng.Int64N(200), Dynamic: rng.Int64N(200), Load: 1e9,
			Profiles: []*profile.Profile{p, p}})
		present, able := make([]Residence, len(s.GPUs)), make([]bool, len(s.GPUs))
		part := int32(rng.IntN(4))
		for g, x := range s.GPUs {
			able[g] = true
			if x.Part == part || x.Part == 0 && part > 1 && x.Pool == 0 {
				present[g] = Offered
			}
		}
		s.Present, s.Loadable = append(s.Present, present), append(s.Loadable, able)
	}
	return s
}

// TestPlacedModelsFit shows that the wanted models fit, that a model is on whole sub-clusters of a pool, that every
// served model stays served, and that a model which no GPU had is loaded nowhere.
func TestPlacedModelsFit(t *testing.T) {
	placed := 0
	for seed := range uint64(100) {
		s := drawSnapshot(rand.New(rand.NewPCG(seed, 70)))
		p, err := PlaceModels(s)
		if err != nil {
			continue // too little memory for so many parts
		}
		placed++
		if err := CheckPlacement(s, p.Wanted); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		again, err := PlaceModels(s)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(p) {
			t.Fatalf("seed %d: two plans of one snapshot: %v and %v", seed, p, again)
		}
	}
	if placed < 33 {
		t.Errorf("%d of 100 snapshots had a plan: the test tries too little", placed)
	}
}

// TestPlacementFollowsLoad divides models over two sub-clusters by their demand, and leaves all in place if nothing
// may move.
func TestPlacementFollowsLoad(t *testing.T) {
	p, err := profile.New([]time.Duration{10e6, 11e6, 12e6, 13e6})
	if err != nil {
		t.Fatal(err)
	}
	s := Snapshot{Parts: 2, MoveShare: 1}
	for g := range 4 {
		s.GPUs = append(s.GPUs, PlacedGPU{Part: int32(g / 2), Memory: 1000})
	}
	for m := range 4 {
		// The two models with the largest demand begin together.
		at := []Residence{Offered, Offered, Absent, Absent}
		if m >= 2 {
			slices.Reverse(at)
		}
		s.Models = append(s.Models, PlacedModel{Rate: []float64{300, 300, 10, 10}[m], SLO: 100e6, Static: 10, Load: 1e9, Profiles: []*profile.Profile{p}})
		s.Present, s.Loadable = append(s.Present, at), append(s.Loadable, []bool{true, true, true, true})
	}

	plan, err := PlaceModels(s)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(plan.Wanted[0], plan.Wanted[1]) || plan.Moved == 0 || plan.ImbalanceDemand > 0.2 {
		t.Errorf("wanted %v, %d moved, imbalance %v", plan.Wanted, plan.Moved, plan.ImbalanceDemand)
	}

	s.MoveShare = 0
	if plan, err = PlaceModels(s); err != nil || fmt.Sprint(plan.Wanted) != fmt.Sprint(s.Present) {
		t.Errorf("without moves: %v, %v; want %v", plan.Wanted, err, s.Present)
	}
}

// TestPlacedModelsAreApartByTheirRoom: of models that all GPUs have, those that cannot wait get a sub-cluster of their own,
// as far from long batches as an assignment of the same services alone would bring them.
func TestPlacedModelsAreApartByTheirRoom(t *testing.T) {
	short, err := profile.Linear(time.Millisecond, 5*time.Millisecond, 32)
	if err != nil {
		t.Fatal(err)
	}
	long, err := profile.Linear(10*time.Millisecond, 60*time.Millisecond, 32)
	if err != nil {
		t.Fatal(err)
	}

	s := Snapshot{Parts: 2, MoveShare: 0.05}
	for range 32 {
		s.GPUs = append(s.GPUs, PlacedGPU{})
	}
	for m := range 20 {
		x := PlacedModel{Rate: 500, SLO: 20 * time.Millisecond, Profiles: []*profile.Profile{short}, Load: time.Second}
		if m%2 == 0 {
			x.Rate, x.SLO, x.Profiles = 75, 400*time.Millisecond, []*profile.Profile{long}
		}
		all, able := make([]Residence, 32), make([]bool, 32)
		for g := range all {
			all[g], able[g] = Offered, true
		}
		s.Models, s.Present, s.Loadable = append(s.Models, x), append(s.Present, all), append(s.Loadable, able)
	}

	p, err := PlaceModels(s)
	if err != nil || len(p.SubClusters) != 2 {
		t.Fatalf("%d sub-clusters, %v", len(p.SubClusters), err)
	}
	for _, c := range p.SubClusters {
		patient := 0
		for _, m := range c.Models {
			if m%2 == 0 {
				patient++
			}
		}
		if len(c.GPUs) != 16 || c.Demand < 5 || min(patient, len(c.Models)-patient) > 1 {
			t.Errorf("%d GPUs are asked for %.2f, by %d patient of %d models: want those of a kind together", len(c.GPUs), c.Demand, patient, len(c.Models))
		}
	}
}

func TestPlacementRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*Snapshot){
		"parts is -1":      func(s *Snapshot) { s.Parts = -1 },
		"want at most 2":   func(s *Snapshot) { s.Parts = 3 },
		"rate is NaN":      func(s *Snapshot) { s.Models[0].Rate = nan() },
		"GPU 1: pool":      func(s *Snapshot) { s.GPUs[1].Memory = -5 },
		"number of models": func(s *Snapshot) { s.Present = nil },
		"model 0: number":  func(s *Snapshot) { s.Loadable[0] = nil },
		"move share is 2":  func(s *Snapshot) { s.MoveShare = 2 },
		"on the largest":   func(s *Snapshot) { s.Models[0].Static = 200 },
	} {
		s := Snapshot{GPUs: []PlacedGPU{{Memory: 100}, {Memory: 100}}, Models: []PlacedModel{{Rate: 1, SLO: 1e9, Static: 10}},
			Present: Placement{{Offered, Offered}}, Loadable: [][]bool{{true, true}}}
		spoil(&s)
		if _, err := PlaceModels(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}

func nan() float64 { zero := 0.0; return zero / zero }

// TestAGPUIsSparedBelowTheTarget shows that the only GPU is never spared, nor one without which the others would
// exceed u*.
func TestAGPUIsSparedBelowTheTarget(t *testing.T) {
	targets := Targets{{1, 0.5}, {3, 0.8}}
	for _, x := range []struct {
		demand float64
		gpus   int
		want   bool
	}{{0, 1, false}, {0.5, 2, true}, {0.51, 2, false}, {2.4, 4, true}, {2.41, 4, false}} {
		if got := MaySpareGPU(targets, x.demand, x.gpus); got != x.want {
			t.Errorf("demand %v on %d GPUs: %v, want %v", x.demand, x.gpus, got, x.want)
		}
	}
}

func TestAQuarterOfAClusterLoads(t *testing.T) {
	for gpus, most := range map[int]int{1: 1, 4: 1, 7: 1, 8: 2, 16: 4} {
		n := 0
		for MayLoadBeside(gpus, n) {
			n++
		}
		if n != most {
			t.Errorf("of %d GPUs %d load at one time, want %d", gpus, n, most)
		}
	}
}
