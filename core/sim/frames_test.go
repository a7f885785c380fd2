package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// drawFrames draws a World of some models with sessions through random graphs of them, from a light load to twice the
// capacity of the GPUs.
func drawFrames(t *testing.T, seed uint64) (*World, []Session) {
	rng := rand.New(rand.NewPCG(seed, 15))
	w := &World{GPUs: 1 + rng.IntN(4), Ctrl: Duration(rng.IntN(200e3)), Data: Duration(rng.IntN(20e3))}
	for range 1 + rng.IntN(4) {
		p, err := profile.Linear(time.Duration(1e5+rng.IntN(3e6)), time.Duration(rng.IntN(8e6)), 1+rng.IntN(16))
		if err != nil {
			t.Fatal(err)
		}
		w.Models = append(w.Models, Model{Profile: p, SLO: Duration(100e6 + rng.IntN(3e8))})
	}

	var sessions []Session
	for range 1 + rng.IntN(12) {
		s := Session{Latency: Duration(40e6 + rng.IntN(4e8)), Period: Duration(1e9 / (1 + rng.Float64()*40)), First: Time(rng.IntN(1e8)), Last: Time(1e9)}
		for j := range 1 + rng.IntN(6) {
			stage := Stage{Model: int32(rng.IntN(len(w.Models)+1)) - 1, FanOut: rng.IntN(5), Fixed: Duration(rng.IntN(3e6)), Offset: Duration(rng.Int64N(int64(s.Latency) / 4))}
			if rng.IntN(2) == 0 {
				stage.Rest = 1 + stage.Offset/Duration(1+rng.IntN(4))/2
			}
			for before := range j {
				if rng.IntN(2) == 0 {
					stage.After = append(stage.After, int32(before))
				}
			}
			s.Stages = append(s.Stages, stage)
		}
		sessions = append(sessions, s)
	}
	return w, sessions
}

// runFrames runs a seed and returns how its frames ended, each counted once.
func runFrames(t *testing.T, seed uint64) (good, bad, again int, end Time) {
	w, sessions := drawFrames(t, seed)
	f := NewFrames(w, 300e3, sessions, func(_ int, _, _ Time, inTime bool) {
		if inTime {
			good++
		} else {
			bad++
		}
	})
	d := NewDownbeat(w)
	f.CancelBy(d)
	w.Run(d)
	if err := f.Check(); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}

	// Each request ends exactly once.
	total := 0
	for _, n := range w.Result.Total {
		total += n
	}
	if total != len(f.owner) || good+bad != len(f.frames) {
		t.Errorf("seed %d: %d requests of %d, %d frames of %d", seed, total, len(f.owner), good+bad, len(f.frames))
	}
	return good, bad, f.again, w.Result.End
}

// TestEveryFrameEndsOnce checks V4 over seeds, and that a seed replays.
func TestEveryFrameEndsOnce(t *testing.T) {
	allGood, allBad, allAgain := 0, 0, 0
	for seed := range uint64(300) {
		good, bad, again, end := runFrames(t, seed)
		allGood, allBad, allAgain = allGood+good, allBad+bad, allAgain+again
		if seed%10 == 0 {
			if g, b, _, e := runFrames(t, seed); g != good || b != bad || e != end {
				t.Errorf("seed %d: %d, %d, %d and then %d, %d, %d", seed, good, bad, end, g, b, e)
			}
		}
	}
	t.Logf("%d frames in time, %d not; %d requests made again", allGood, allBad, allAgain)
	if allGood < 1000 || allBad < 1000 || allAgain < 1000 {
		t.Errorf("%d frames in time, %d not, %d requests made again: the seeds try too little", allGood, allBad, allAgain)
	}
}

// TestFramesBesideOthers shows that requests outside frames belong to no session, and that both kinds of requests
// end.
func TestFramesBesideOthers(t *testing.T) {
	p, err := profile.Linear(1e6, 4e6, 8)
	if err != nil {
		t.Fatal(err)
	}
	w := &World{GPUs: 2, Models: []Model{{Name: "a", Profile: p, SLO: 50e6}}}
	for i := range 100 {
		w.Arrivals = append(w.Arrivals, arrivals.Arrival{At: time.Duration(i) * time.Millisecond})
	}
	ended := 0
	f := NewFrames(w, 1e5, []Session{{Stages: []Stage{{Model: 0, FanOut: 3}}, Latency: 50e6, Period: 20e6, Last: 100e6}}, func(_ int, _, _ Time, inTime bool) {
		if inTime {
			ended++
		}
	})

	others, ofFrames := 0, 0
	w.Trace = func(_, _ int32, _, _ Time, requests []int32) {
		for _, r := range requests {
			if _, ok := f.SessionOf(r); ok {
				ofFrames++
			} else {
				others++
			}
		}
	}
	d := NewDownbeat(w)
	f.CancelBy(d)
	w.Run(d)
	if err := f.Check(); err != nil || ended != 5 || others != 100 || ofFrames != 15 {
		t.Errorf("%d of 5 frames in time, %d of 100 requests by themselves, %d of 15 of frames: %v", ended, others, ofFrames, err)
	}
}
