package plan

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// drawStage draws a stage whose batches are worth waiting for, or are not.
func drawStage(t testing.TB, rng *rand.Rand, batches int) Stage {
	if rng.IntN(8) == 0 {
		return Stage{Fixed: time.Duration(rng.IntN(5e6))}
	}
	return Stage{Profile: linear(t, time.Duration(1e5+rng.IntN(2e6)), time.Duration(rng.IntN(8e6)), batches),
		FanOut: float64(rng.IntN(4)) + rng.Float64(), OthersRate: 400 * rng.Float64()}
}

// drawSeriesParallel composes n stages in series and in parallel at random.
func drawSeriesParallel(t testing.TB, rng *rand.Rand, n int) Application {
	var a Application
	var build func(n int, after []int32) (last []int32)
	build = func(n int, after []int32) []int32 {
		if n == 1 {
			s := drawStage(t, rng, 7)
			s.After = after
			a.Stages = append(a.Stages, s)
			return []int32{int32(len(a.Stages) - 1)}
		}
		k := 1 + rng.IntN(n-1)
		if rng.IntN(2) == 0 {
			return build(n-k, build(k, after))
		}
		return append(build(k, after), build(n-k, after)...)
	}
	build(n, nil)
	a.Hop = time.Duration(rng.IntN(3e5))
	return a
}

// cheapestByTrial tries every batch at every stage.
func cheapestByTrial(a Application, rate float64, latency time.Duration) float64 {
	budget := make([]time.Duration, len(a.Stages))
	order := a.order()
	best := math.Inf(1)
	var try func(i int, cost float64)
	try = func(i int, cost float64) {
		if cost >= best {
			return
		}
		if i == len(order) {
			best = cost
			return
		}
		j := order[i]
		s := &a.Stages[j]
		fits := func() bool {
			until := make([]time.Duration, len(a.Stages))
			for _, k := range order[:i+1] {
				for _, before := range a.Stages[k].After {
					until[k] = max(until[k], until[before])
				}
				until[k] += budget[k] + a.Hop
			}
			return until[j] <= latency
		}
		if s.Profile == nil {
			budget[j] = s.Fixed
			if fits() {
				try(i+1, cost)
			}
			return
		}
		for b := 1; b <= s.Profile.Max(); b++ {
			if budget[j] = gatherTime(s.OthersRate+rate*s.FanOut, b) + s.Profile.Exec(b); fits() {
				try(i+1, cost+rate*s.FanOut*s.Profile.Exec(b).Seconds()/float64(b))
			}
		}
	}
	try(0, 0)
	return best
}

func TestSplitIsNearTheOptimum(t *testing.T) {
	worst, compared := 0.0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 50))
		a := drawSeriesParallel(t, rng, 1+rng.IntN(6))
		rate, latency := 5+200*rng.Float64(), time.Duration(20e6+rng.IntN(15e7))
		b, err := SplitLatency(a, rate, latency)
		best := cheapestByTrial(a, rate, latency)
		var infeasible *InfeasibleError
		if errors.As(err, &infeasible) {
			if !math.IsInf(best, 1) {
				t.Fatalf("seed %d: %v, but a split exists", seed, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckSplit(a, rate, latency, b); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		compared++
		if best > 0 {
			worst = max(worst, b.Total/best-1)
		}
	}
	t.Logf("%d splits, at most %.4f %% above the optimum", compared, 100*worst)
	if worst > 0.01 || compared < 150 {
		t.Errorf("%d splits, at most %.2f %% above the optimum; want 1 %%", compared, 100*worst)
	}
}

// TestSplitOfAnyGraph compares splits of random graphs, few of them series-parallel, with the checker and the
// optimum.
func TestSplitOfAnyGraph(t *testing.T) {
	sum, n, worst := 0.0, 0, 0.0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 51))
		var a Application
		for j := range 2 + rng.IntN(5) {
			s := drawStage(t, rng, 5)
			for before := range j {
				if rng.IntN(2) == 0 {
					s.After = append(s.After, int32(before))
				}
			}
			a.Stages = append(a.Stages, s)
		}
		rate, latency := 5+200*rng.Float64(), time.Duration(30e6+rng.IntN(15e7))
		b, err := SplitLatency(a, rate, latency)
		best := cheapestByTrial(a, rate, latency)
		if err != nil {
			if !math.IsInf(best, 1) {
				t.Fatalf("seed %d: %v, but a split exists", seed, err)
			}
			continue
		}
		if err := CheckSplit(a, rate, latency, b); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if best > 0 {
			sum, n, worst = sum+b.Total/best-1, n+1, max(worst, b.Total/best-1)
		}
	}
	t.Logf("%d graphs: %.3f %% above the optimum on average, %.2f %% at most", n, 100*sum/float64(n), 100*worst)
	if sum/float64(n) > 0.01 {
		t.Errorf("%.2f %% above the optimum on average", 100*sum/float64(n))
	}
}

// TestOthersMakeAStageCheaper adds other requests to a stage, which then needs less time for the same batch.
func TestOthersMakeAStageCheaper(t *testing.T) {
	p := linear(t, time.Millisecond, 10*time.Millisecond, 32)
	a := Application{Stages: []Stage{{Profile: p, FanOut: 1}, {Profile: p, FanOut: 1, After: []int32{0}}}}
	alone, err := SplitLatency(a, 60, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	a.Stages[1].OthersRate = 2000
	with, err := SplitLatency(a, 60, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if with.Batch[1] <= alone.Batch[1] || with.Budget[1] >= alone.Budget[1] || with.Batch[0] <= alone.Batch[0] || with.Total >= alone.Total {
		t.Errorf("alone %+v, with others %+v", alone, with)
	}
}

func TestSplitRefuses(t *testing.T) {
	p := linear(t, time.Millisecond, 10*time.Millisecond, 32)
	for want, spoil := range map[string]func(*Application, *float64, *time.Duration){
		"number of stages is 0":           func(a *Application, _ *float64, _ *time.Duration) { a.Stages = nil },
		"a cycle among 2 stages":          func(a *Application, _ *float64, _ *time.Duration) { a.Stages[0].After = []int32{1} },
		"stage 1: stage before it is 2":   func(a *Application, _ *float64, _ *time.Duration) { a.Stages[1].After = []int32{2} },
		"stage 0: fan-out is NaN":         func(a *Application, _ *float64, _ *time.Duration) { a.Stages[0].FanOut = math.NaN() },
		"stage 1: rate of others is +Inf": func(a *Application, _ *float64, _ *time.Duration) { a.Stages[1].OthersRate = math.Inf(1) },
		"stage 0: kind is 8":              func(a *Application, _ *float64, _ *time.Duration) { a.Stages[0].Kind = 8 },
		"hop is -1ns":                     func(a *Application, _ *float64, _ *time.Duration) { a.Hop = -1 },
		"rate is -1":                      func(_ *Application, rate *float64, _ *time.Duration) { *rate = -1 },
		"latency is 0s":                   func(_ *Application, _ *float64, latency *time.Duration) { *latency = 0 },
		"longest path: 22 ms needed, 20":  func(_ *Application, _ *float64, latency *time.Duration) { *latency = 20 * time.Millisecond },
	} {
		a := Application{Stages: []Stage{{Profile: p, FanOut: 1}, {Profile: p, FanOut: 1, After: []int32{0}}}}
		rate, latency := 10.0, 100*time.Millisecond
		spoil(&a, &rate, &latency)
		if _, err := SplitLatency(a, rate, latency); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	// A fan-out of 0 and a rate of 0 are valid: they are a stage without requests.
	a := Application{Stages: []Stage{{Profile: p}, {Profile: p, FanOut: 10_000, After: []int32{0}}}}
	if b, err := SplitLatency(a, 0, 100*time.Millisecond); err != nil || CheckSplit(a, 0, 100*time.Millisecond, b) != nil || b.Total != 0 {
		t.Errorf("%+v, %v", b, err)
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(uint64(1), 1.0, 10.0, 60.0, int64(50e6), int64(1e5))
	f.Add(uint64(2), math.NaN(), math.Inf(1), -1.0, int64(math.MaxInt64), int64(-1))
	f.Add(uint64(3), 1e300, 1e-300, 1e300, int64(24*time.Hour), int64(24*time.Hour))
	f.Fuzz(func(t *testing.T, seed uint64, fanOut, others, rate float64, latency, hop int64) {
		rng := rand.New(rand.NewPCG(seed, 53))
		a := drawSeriesParallel(t, rng, 1+rng.IntN(5))
		a.Stages[0].FanOut, a.Stages[0].OthersRate, a.Hop = fanOut, others, time.Duration(hop)
		if rng.IntN(2) == 0 {
			a.Stages[0].Profile, a.Stages[0].Fixed = nil, time.Duration(latency/2)
		}
		b, err := SplitLatency(a, rate, time.Duration(latency))
		if err != nil || rate*fanOut > 1e15 || rate*fanOut > 0 && rate*fanOut < 1e-15 {
			return
		}
		if err := CheckSplit(a, rate, time.Duration(latency), b); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkSplit(b *testing.B) {
	rng := rand.New(rand.NewPCG(3, 52))
	a := drawSeriesParallel(b, rng, 6)
	for j := range a.Stages {
		if a.Stages[j].Profile != nil {
			a.Stages[j].Profile = linear(b, 1053*time.Microsecond, 5072*time.Microsecond, 64)
		}
	}
	for b.Loop() {
		if _, err := SplitLatency(a, 60, 400*time.Millisecond); err != nil {
			b.Fatal(err)
		}
	}
}
