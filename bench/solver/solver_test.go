package solver

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// solve skips the test only where the module cannot be had.
func solve(t *testing.T, p Problem) Solution {
	t.Helper()
	s, err := Solve(t.Context(), p)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// knapsack maximises the value of items within a weight, as a minimum of what is left out.
func knapsack(value, weight []float64, limit float64, integer bool) Problem {
	var p Problem
	row := p.AddRow(-Inf, limit)
	for i := range value {
		p.AddColumn(-value[i], 0, 1, integer, Term{row, weight[i]})
	}
	return p
}

func TestLinearProgramHasDuals(t *testing.T) {
	s := solve(t, knapsack([]float64{60, 100, 120}, []float64{10, 20, 30}, 50, false))
	if s.Status != Optimal || math.Abs(s.Objective+240) > 1e-9 || math.Abs(s.Bound-s.Objective) > 1e-9 {
		t.Fatalf("%+v, want the optimum -240", s)
	}
	if math.Abs(s.RowDuals[0]+4) > 1e-9 { // the third item is split: 120/30 per unit of weight
		t.Errorf("a unit of weight is worth %v, want -4", s.RowDuals[0])
	}
}

func TestIntegersAgreeWithEnumeration(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		value, weight := make([]float64, 10), make([]float64, 10)
		total := 0.0
		for i := range value {
			value[i], weight[i] = 1+rng.Float64(), 0.5+rng.Float64()
			total += weight[i]
		}
		best := 0.0
		for set := range 1 << len(value) {
			v, w := 0.0, 0.0
			for i := range value {
				if set>>i&1 == 1 {
					v, w = v+value[i], w+weight[i]
				}
			}
			if w <= total/2 {
				best = max(best, v)
			}
		}
		p := knapsack(value, weight, total/2, true)
		p.Gap = 1e-9
		if s := solve(t, p); s.Status != Optimal || math.Abs(s.Objective+best) > 1e-6 || s.Bound > s.Objective+1e-6 {
			t.Errorf("seed %d: %v %v (bound %v), enumeration finds %v", seed, s.Status, s.Objective, s.Bound, -best)
		}
	}
}

func TestProblemsWithoutSolutionAreNoErrors(t *testing.T) {
	var none Problem
	row := none.AddRow(3, Inf)
	none.AddColumn(1, 0, 2, true, Term{row, 1})
	if s := solve(t, none); s.Status != Infeasible {
		t.Errorf("%v, want infeasible", s.Status)
	}
	var endless Problem
	endless.AddColumn(-1, 0, Inf, false)
	if s := solve(t, endless); s.Status != Unbounded {
		t.Errorf("%v, want unbounded", s.Status)
	}
}

// hardProblem is a market split instance: tiny, and out of reach of branch and bound.
func hardProblem(n, rows int) Problem {
	rng := rand.New(rand.NewPCG(3, 3))
	var p Problem
	sum := make([]float64, rows)
	weights := make([][]float64, n)
	for j := range weights {
		weights[j] = make([]float64, rows)
		for i := range rows {
			weights[j][i] = float64(rng.IntN(100))
			sum[i] += weights[j][i]
		}
	}
	for i := range rows {
		half := math.Floor(sum[i] / 2)
		p.AddRow(half, half)
	}
	for j := range weights {
		terms := make([]Term, rows)
		for i := range terms {
			terms[i] = Term{i, weights[j][i]}
		}
		p.AddColumn(0, 0, 1, true, terms...)
	}
	for i := range rows {
		p.AddColumn(1, 0, Inf, false, Term{i, 1})
		p.AddColumn(1, 0, Inf, false, Term{i, -1})
	}
	return p
}

func TestTimeLimitLeavesTheBestPoint(t *testing.T) {
	p := hardProblem(50, 6)
	p.Limit = time.Second
	p.Hint = make([]float64, len(p.Cost))
	for i := range 6 { // all items on one side: feasible and bad
		p.Hint[50+2*i] = p.RowLower[i]
	}
	s := solve(t, p)
	if s.Status != Feasible || len(s.Values) != len(p.Cost) || s.Bound > s.Objective {
		t.Errorf("%v with %d values, bound %v, objective %v; want a feasible point after the time limit", s.Status, len(s.Values), s.Bound, s.Objective)
	}
}

func TestContextStopsASearch(t *testing.T) {
	solve(t, knapsack([]float64{1}, []float64{1}, 1, true))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	p := hardProblem(60, 7)
	p.Limit = time.Hour
	if _, err := Solve(ctx, p); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

func TestSolveIsSafeForConcurrentUse(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			limit := float64(i + 1)
			s, err := Solve(t.Context(), knapsack([]float64{1}, []float64{10}, limit, false))
			if err == nil && math.Abs(s.Objective+limit/10) > 1e-9 {
				t.Errorf("problem %d has the answer %v", i, s.Objective)
			}
			if err != nil && !errors.Is(err, ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestMalformedProblemsAreRefused(t *testing.T) {
	good := func() Problem { return knapsack([]float64{1, 2}, []float64{1, 1}, 1, true) }
	for want, spoil := range map[string]func(*Problem){
		"no columns":    func(p *Problem) { *p = Problem{} },
		"column 1":      func(p *Problem) { p.Cost[1] = math.NaN() },
		"in [3, 1]":     func(p *Problem) { p.Lower[0] = 3 },
		"row 0":         func(p *Problem) { p.RowLower[0] = 2 },
		"in row 7":      func(p *Problem) { p.Row[1] = 7 },
		"2 costs":       func(p *Problem) { p.Upper = p.Upper[:1] },
		"before start":  func(p *Problem) { p.Start[1] = 5 },
		"gap NaN":       func(p *Problem) { p.Gap = math.NaN() },
		"0 upper row":   func(p *Problem) { p.RowUpper = nil },
		"coefficient 0": func(p *Problem) { p.Value[0] = Inf },
	} {
		p := good()
		spoil(&p)
		if _, err := Solve(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
}
