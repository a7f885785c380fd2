package plan

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// trunkFleet has a model of 900 bytes with exits of 300 and 600, of which 280 and 560 belong to the model.
func trunkFleet(memory int64) Fleet {
	return Fleet{Memory: []int64{memory}, Static: []int64{900, 300, 600}, Dynamic: []int64{0, 0, 0}, Trunk: []int32{1, 1, 1}, Shared: []int64{900, 280, 560}}
}

// TestATrunkIsHeldOnce shows that a GPU needs memory for the model and the exits' heads if it has all of them, and
// for the longer exit and the other's head if it has only the exits.
func TestATrunkIsHeldOnce(t *testing.T) {
	for _, c := range []struct {
		wanted []Residence
		need   int64
	}{
		{[]Residence{Offered, Offered, Offered}, 900 + 20 + 40},
		{[]Residence{Absent, Offered, Offered}, 560 + 20 + 40},
		{[]Residence{Absent, Offered, Absent}, 300},
	} {
		var wanted, present Placement
		for _, at := range c.wanted {
			wanted, present = append(wanted, []Residence{at}), append(present, []Residence{Absent})
		}
		f := trunkFleet(c.need)
		r, err := Reconfigure(f, present, wanted)
		if err != nil {
			t.Fatalf("%v in %d bytes: %v", c.wanted, c.need, err)
		}
		if err := CheckReconfiguration(f, present, wanted, r); err != nil {
			t.Errorf("%v: %v", c.wanted, err)
		}
		var short *InfeasibleError
		if _, err := Reconfigure(trunkFleet(c.need-1), present, wanted); !errors.As(err, &short) {
			t.Errorf("%v in %d bytes: %v", c.wanted, c.need-1, err)
		}
	}
}

// TestExitsStayWithTheirModel shows that a placement keeps the models of one trunk on the same GPUs.
func TestExitsStayWithTheirModel(t *testing.T) {
	p, err := profile.New([]time.Duration{2e6, 3e6})
	if err != nil {
		t.Fatal(err)
	}
	together := 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 71))
		s := drawSnapshot(rng)
		all := make([]Residence, len(s.GPUs))
		able := make([]bool, len(s.GPUs))
		for g, x := range s.GPUs {
			able[g] = true
			if x.Part == 0 {
				all[g] = Offered
			}
		}
		first := len(s.Models)
		for _, bytes := range [][2]int64{{400, 400}, {150, 140}, {250, 230}} {
			s.Models = append(s.Models, PlacedModel{Rate: 50 * rng.Float64(), SLO: 50e6, Static: bytes[0], Shared: bytes[1], Trunk: 3, Load: 1e9, Profiles: []*profile.Profile{p, p}})
			s.Present, s.Loadable = append(s.Present, append([]Residence(nil), all...)), append(s.Loadable, able)
		}
		plan, err := PlaceModels(s)
		if err != nil {
			continue
		}
		if err := CheckPlacement(s, plan.Wanted); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for g := range s.GPUs {
			if a, b, c := plan.Wanted[first][g], plan.Wanted[first+1][g], plan.Wanted[first+2][g]; a != b || a != c {
				t.Fatalf("seed %d: GPU %d: the model is %v there, its exits %v and %v", seed, g, a, b, c)
			}
		}
		together++
	}
	if together < 20 {
		t.Errorf("%d of 60 snapshots had a plan: the test tries too little", together)
	}
}
