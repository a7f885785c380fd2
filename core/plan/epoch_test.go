package plan

import (
	"math/rand/v2"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// TestAnEpochMovesWhatIsWorthIt shows that a busy GPU is relieved if the gain exceeds the cost of loading. Nothing
// moves if all GPUs have time, if the gain is within the error of the estimates, or if the loads take as much.
func TestAnEpochMovesWhatIsWorthIt(t *testing.T) {
	for _, x := range []struct {
		w    EpochWeight
		want bool
	}{
		{EpochWeight{Before: 0.9, After: 0.6, Cost: 0.01}, true},
		{EpochWeight{Before: 0.9, After: 0.6, Cost: 0.4}, false},
		{EpochWeight{Before: 0.45, After: 0.1, Cost: 0}, false},
		{EpochWeight{Before: 0.53, After: 0.1, Cost: 0}, false},
		{EpochWeight{Before: 0.9, After: 0.86, Cost: 0}, false},
		{EpochWeight{Before: 0.6, After: 0.9, Cost: 0}, false},
		{EpochWeight{Before: 1.8, After: 1.2, Cost: 0.1}, true},
	} {
		if x.w.IsWorthMoving() != x.want {
			t.Errorf("%+v: want %v", x.w, x.want)
		}
	}
}

// drawEpoch draws two pools of GPUs, each with some of the models, loaded on GPUs at random.
func drawEpoch(rng *rand.Rand) (s Snapshot) {
	for g := range 2 + rng.IntN(8) {
		s.GPUs = append(s.GPUs, PlacedGPU{Pool: int32(min(g, rng.IntN(2))), Part: Nowhere, Host: int32(g), Memory: 1 << 40})
	}
	for range 1 + rng.IntN(9) {
		m := PlacedModel{Rate: 2000 * rng.Float64() * rng.Float64(), SLO: time.Duration(20+rng.IntN(200)) * time.Millisecond, Static: 1 << 30,
			Load: time.Duration(rng.IntN(5000)) * time.Millisecond}
		on, able := make([]Residence, len(s.GPUs)), make([]bool, len(s.GPUs))
		for g := range on {
			able[g] = true
			if rng.IntN(3) == 0 {
				on[g] = Offered
			}
		}
		on[rng.IntN(len(on))] = Offered
		for range 2 {
			p, err := profile.Linear(time.Duration(1+rng.IntN(3))*time.Millisecond, time.Duration(1+rng.IntN(9))*time.Millisecond, 1+rng.IntN(16))
			if err != nil || rng.IntN(9) == 0 {
				p = nil
			}
			m.Profiles = append(m.Profiles, p)
		}
		s.Models, s.Present, s.Loadable = append(s.Models, m), append(s.Present, on), append(s.Loadable, able)
	}
	s.MoveShare = EpochMoveShare
	return s
}

// TestEpochsAreWeighedAsTheCheckerAdds compares weights with the checker on drawn clusters. An epoch's moves relieve
// the busiest GPU, and some clusters have such moves.
func TestEpochsAreWeighedAsTheCheckerAdds(t *testing.T) {
	worth, tried := 0, 0
	for seed := range uint64(400) {
		s := drawEpoch(rand.New(rand.NewPCG(seed, 80)))
		p, err := PlaceModels(s)
		if err != nil {
			continue
		}
		tried++
		w := WeighEpoch(&s, p.Wanted, time.Minute)
		if err := CheckEpoch(&s, p.Wanted, time.Minute, w); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if again := WeighEpoch(&s, p.Wanted, time.Minute); again != w {
			t.Fatalf("seed %d: %+v and then %+v", seed, w, again)
		}
		if w.IsWorthMoving() {
			worth++
			if w.After >= w.Before {
				t.Fatalf("seed %d: %+v", seed, w)
			}
		}
	}
	if tried < 100 || worth < tried/20 || worth == tried {
		t.Errorf("%d of %d drawn plans are worth their moves: the test tries too little", worth, tried)
	}
}
