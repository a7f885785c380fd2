package plan

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAdviceFollowsTheRules(t *testing.T) {
	reasons := [4]int{}
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 20))
		s := &Scaler{Targets: DefaultTargets(), Least: 1, Most: 60}
		var at []time.Duration
		var loads []Load
		now, demand, gpus, ordered := time.Duration(0), 5.0, 8, 8
		slower := 1 + 0.2*rng.Float64() // than the profiles from which the demand is computed
		for step := range 700 {
			now += time.Duration(200+rng.IntN(800)) * time.Millisecond
			if rng.IntN(100) == 0 {
				demand = 40 * rng.Float64()
			}
			l := Load{Demand: demand * (0.9 + 0.2*rng.Float64()), GPUs: gpus, Ordered: ordered, Requests: rng.IntN(2000)}
			if slower*l.Demand > float64(gpus) {
				l.Bad = int(float64(l.Requests) * (1 - float64(gpus)/(slower*l.Demand)))
			}
			at, loads = append(at, now), append(loads, l)
			a, err := s.Observe(now, l)
			if err != nil {
				t.Fatal(err)
			}
			if step%7 > 0 {
				// The checker goes through the whole history.
			} else if err := CheckAdvice(s.Targets, s.Least, s.Most, 20*time.Second, at, loads, a); err != nil {
				t.Fatalf("seed %d, %v: %v", seed, now, err)
			} else {
				reasons[a.Reason]++
			}

			// The cluster follows the advice: orders arrive late, releases at once.
			if ordered = a.GPUs; gpus > ordered {
				gpus = ordered
			} else if rng.IntN(20) == 0 {
				gpus = ordered
			}
		}
	}
	for r, n := range reasons {
		if n == 0 {
			t.Errorf("no advice for reason %v: the test tries too little", ScaleReason(r))
		}
	}
}

// TestScalerFollowsADayCheaply runs two hours of a load that rises and falls threefold, in a fluid cluster whose GPUs
// take 20 s to start. The GPU time stays within a tenth of the time with known load, and requests go bad only just
// after a jump of the load.
func TestScalerFollowsADayCheaply(t *testing.T) {
	const start = 20 * time.Second
	s := &Scaler{Targets: DefaultTargets(), Least: 1, Most: 1000}
	gpus := 40
	var arrive []time.Duration
	used, clairvoyant, bad, all := 0.0, 0.0, 0.0, 0.0
	load := func(now time.Duration) float64 {
		return 60 - 30*math.Cos(2*math.Pi*now.Seconds()/7200) + math.Sin(now.Seconds()/7)
	}
	for now := time.Duration(0); now < 2*time.Hour; now += time.Second {
		for len(arrive) > 0 && arrive[0] <= now {
			arrive = arrive[1:]
			gpus++
		}
		demand := load(now)
		l := Load{Demand: demand, GPUs: gpus, Ordered: gpus + len(arrive), Requests: int(demand * 100)}
		l.Bad = int(100 * max(0, demand-float64(gpus)))
		a, err := s.Observe(now, l)
		if err != nil {
			t.Fatal(err)
		}
		for range a.GPUs - l.Ordered {
			arrive = append(arrive, now+start)
		}
		if a.GPUs < l.Ordered {
			gpus -= min(gpus-1, l.Ordered-a.GPUs)
		}
		used += float64(l.Ordered)
		clairvoyant += float64(max(s.Targets.GPUsFor(demand), s.Targets.GPUsFor(load(now+start))))
		bad, all = bad+float64(l.Bad), all+float64(l.Requests)
	}
	if used > 1.1*clairvoyant || bad > 0.001*all {
		t.Errorf("%.3f of a clairvoyant's GPU time, %.3f %% bad; want at most 1.1 and 0.1 %%", used/clairvoyant, 100*bad/all)
	}
}

// TestScalerGivesWhatBadRequestsAskFor shows that GPUs that are a tenth slower than their profiles are not given up
// and ordered again repeatedly, and that requests that go bad while ordered GPUs start cause no further orders.
func TestScalerGivesWhatBadRequestsAskFor(t *testing.T) {
	s := &Scaler{Targets: DefaultTargets(), Least: 1, Most: 1000}
	gpus, given, up := 32, 0, 0
	for now := time.Duration(0); now < 2*time.Hour; now += time.Second {
		l := Load{Demand: 30, GPUs: gpus, Ordered: gpus, Requests: 3000, Bad: int(3000 * max(0, 1-float64(gpus)/33.5))}
		a, err := s.Observe(now, l)
		if err != nil {
			t.Fatal(err)
		}
		if gpus >= 34 {
			up++
		}
		if a.Reason == ScaleIdle {
			given++
		}
		gpus = a.GPUs
	}
	if given < 3 || given > 25 || up < 7000 {
		t.Errorf("given back %d times in two hours, enough for %d s; want a few times, and 7000 s", given, up)
	}

	// Demand jumps by a half: half of the requests go bad until GPUs have started.
	s = &Scaler{Targets: DefaultTargets(), Least: 1, Most: 1000}
	for now := time.Duration(0); now < 2*time.Minute; now += time.Second {
		l := Load{Demand: 20, GPUs: 24, Ordered: 24, Requests: 2000}
		if now >= time.Minute {
			l = Load{Demand: 40, GPUs: 24, Ordered: 42, Requests: 4000, Bad: 1600}
		}
		if a, err := s.Observe(now, l); err != nil || now > 110*time.Second && a.GPUs > 50 || a.Reason == ScaleBad {
			t.Fatalf("%v: %+v, %v", now, a, err)
		}
	}
}

// TestForecastExpectsGrowthAndLearnsItsErrors shows that a steady rise is expected to continue, that a fall is not,
// and that a load that jumps widens the margin.
func TestForecastExpectsGrowthAndLearnsItsErrors(t *testing.T) {
	run := func(load func(s float64) float64) (at float64, f *forecast) {
		f = &forecast{}
		for s := range 300 {
			at = f.expect(time.Duration(s)*time.Second, time.Second, 20*time.Second, load(float64(s)))
		}
		return at, f
	}

	level, _ := run(func(float64) float64 { return 50 })
	falls, _ := run(func(s float64) float64 { return 400 - s })
	climbs, f := run(func(s float64) float64 { return 50 + s })
	if math.Abs(level-50-0.1*math.Sqrt(50)) > 1e-9 || math.Abs(falls-101-0.1*math.Sqrt(101)) > 1e-9 {
		t.Errorf("%v after a level load of 50, %v after one that fell to 101", level, falls)
	}
	// The trend is extrapolated for 10 of the 20 s, which gives 10 more; half of that is the margin.
	if math.Abs(climbs-(349+10+5)) > 0.5 || math.Abs(f.square-100) > 10 {
		t.Errorf("%v after a climb to 349, mean square %v", climbs, f.square)
	}
	if _, f := run(func(s float64) float64 { return 50 + 20*float64(int(s)/60%2) }); f.square < 20 {
		t.Errorf("mean square %v of a load that jumps by 20 every two minutes", f.square)
	}
}

func TestScalerRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*Scaler, *Load, *time.Duration){
		"demand is NaN":            func(_ *Scaler, l *Load, _ *time.Duration) { l.Demand = math.NaN() },
		"requests and bad":         func(_ *Scaler, l *Load, _ *time.Duration) { l.Bad = 11 },
		"GPUs and ordered":         func(_ *Scaler, l *Load, _ *time.Duration) { l.Ordered = 1 },
		"now is 1s":                func(_ *Scaler, _ *Load, now *time.Duration) { *now = time.Second },
		"start is -1s":             func(s *Scaler, _ *Load, _ *time.Duration) { s.Start = -time.Second },
		"least and most GPUs":      func(s *Scaler, _ *Load, _ *time.Duration) { s.Most = 0 },
		"targets is empty":         func(s *Scaler, _ *Load, _ *time.Duration) { s.Targets = nil },
		"target 0: share is 1.5, ": func(s *Scaler, _ *Load, _ *time.Duration) { s.Targets = Targets{{1, 1.5}} },
	} {
		s := &Scaler{Targets: DefaultTargets(), Least: 1, Most: 10}
		l, now := Load{Demand: 1, Requests: 10, GPUs: 2, Ordered: 2}, 3*time.Second
		if _, err := s.Observe(2*time.Second, l); err != nil {
			t.Fatal(err)
		}
		spoil(s, &l, &now)
		if _, err := s.Observe(now, l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}

	// Without GPUs and requests there is no error, and no GPU unless Least requires one.
	s := &Scaler{Targets: DefaultTargets(), Most: 10}
	if a, err := s.Observe(0, Load{}); err != nil || a.GPUs != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestDrainTakesTheHighest(t *testing.T) {
	gpus, draining := []int32{1, 2, 5, 7, 9}, []bool{false, true, false, false, false}
	for n, want := range [][]int32{nil, {2}, {2, 9}, {2, 9, 7}} {
		if got := Drain(gpus, draining, n); !slices.Equal(got, want) {
			t.Errorf("%d of %v: %v, want %v", n, gpus, got, want)
		}
	}
	if got := Drain(gpus, draining, 9); len(got) != 5 {
		t.Errorf("9 of 5: %v", got)
	}
}

// TestScalerStopsWhereNoGPUMends: half of the requests go bad with any number of GPUs, because their callers allow
// less time than a batch takes. The advice is at most four times what the demand needs.
func TestScalerStopsWhereNoGPUMends(t *testing.T) {
	s := &Scaler{Targets: DefaultTargets(), Least: 1, Most: 1000}
	l := Load{Demand: 1.2, Requests: 200, Bad: 100, GPUs: 2, Ordered: 2}
	var at []time.Duration
	var loads []Load
	most := 0
	for second := range 300 {
		at, loads = append(at, time.Duration(second)*time.Second), append(loads, l)
		a, err := s.Observe(at[second], l)
		if err != nil {
			t.Fatal(err)
		}
		if second%20 == 0 {
			if err := CheckAdvice(s.Targets, s.Least, s.Most, scaleStart, at, loads, a); err != nil {
				t.Fatal(err)
			}
		}
		l.GPUs, l.Ordered, most = a.GPUs, a.GPUs, max(most, a.GPUs)
	}
	if need := s.Targets.GPUsFor(1.2); most != 4*need {
		t.Errorf("%d GPUs at most, %d are needed: want four times as many", most, need)
	}
}
