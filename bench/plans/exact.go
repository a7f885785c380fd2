package plans

import (
	"context"
	"fmt"
	"math"
	"time"

	"downbeat.dev/bench/solver"
	"downbeat.dev/core/plan"
)

// ExactAssignment solves Symphony's appendix A.1 as printed, with demand instead of rate: minimise ΔR/R̄ + ΔS/S̄ over
// x_ij ∈ {0, 1}. Sub-clusters must be equal. The first service is fixed to the first sub-cluster, or to its home,
// which removes one symmetry. hint, a home per service, may be nil. The solution's values are homes; its objective
// and bound are of the paper's sum.
func ExactAssignment(ctx context.Context, p plan.AssignmentProblem, hint []int32, limit time.Duration) (home []int32, s solver.Solution, err error) {
	n, parts := len(p.Services), len(p.SubClusters)
	for j, c := range p.SubClusters {
		if c != p.SubClusters[0] {
			return nil, s, fmt.Errorf("sub-cluster %d differs from the first: the paper's program has equal ones", j)
		}
	}

	program := printedProgram(&p, hint != nil)
	m, first := program.Problem, program.first
	m.Limit, m.Gap = limit, 1e-4
	if hint != nil {
		m.Hint = hintOf(&p, hint, len(m.Cost), first, program.meanStatic)
	}

	s, err = solver.Solve(ctx, m)
	if err != nil || s.Values == nil {
		return nil, s, err
	}

	// Binaries come back as numbers near 0 and 1.
	home = make([]int32, n)
	for i := range n {
		for j := range parts {
			if s.Values[first+i*parts+j] > 0.5 {
				home[i] = int32(j)
			}
		}
	}
	return home, s, nil
}

// assignmentRows are the rows of one sub-cluster: the deviations, from either side, and the limits.
type assignmentRows struct{ demandOver, demandUnder, staticOver, staticUnder, memory, rate int }

// assignmentProgram is the printed program. Its columns are ΔR, ΔS, the largest dynamic memory of each sub-cluster,
// and from first on x_ij by rows.
type assignmentProgram struct {
	solver.Problem
	of                     []assignmentRows
	dynamic                [][]int // by service and sub-cluster: the row of x_ij·d_i ≤ D_j
	first                  int
	meanDemand, meanStatic float64
}

func printedProgram(p *plan.AssignmentProblem, symmetric bool) *assignmentProgram {
	parts := len(p.SubClusters)
	m := &assignmentProgram{of: make([]assignmentRows, parts)}

	for _, v := range p.Services {
		m.meanDemand += v.Demand / float64(parts)
		m.meanStatic += float64(v.Static) / float64(parts)
	}

	// An absolute deviation needs two rows: the sub-cluster may be above or below the mean.
	for j, c := range p.SubClusters {
		m.of[j] = assignmentRows{m.AddRow(-solver.Inf, 1), m.AddRow(1, solver.Inf), m.AddRow(-solver.Inf, 1), m.AddRow(1, solver.Inf),
			m.AddRow(-solver.Inf, float64(c.Memory)/m.meanStatic), -1}
		if c.RateMax > 0 {
			m.of[j].rate = m.AddRow(-solver.Inf, c.RateMax)
		}
	}

	// Columns refer to existing rows, so add the rows of all x_ij first.
	m.addDeviations(len(p.Services))

	moves := addMoveRow(&m.Problem, p)
	m.first = len(m.Cost)
	for i, v := range p.Services {
		once := m.AddRow(1, 1)
		for j := range parts {
			terms := append(m.terms(i, j, &v), solver.Term{Row: once, Value: 1})
			if moves >= 0 && v.Home != plan.Nowhere && v.Home != j {
				terms = append(terms, solver.Term{Row: moves, Value: v.Load.Seconds()})
			}

			// Equal sub-clusters are interchangeable: fixing the first service's place halves the search, or more.
			upper := 1.0
			if i == 0 && v.Home == plan.Nowhere && j > 0 && !symmetric {
				upper = 0
			}
			m.AddColumn(0, 0, upper, true, terms...)
		}
	}
	return m
}

// addDeviations adds the columns that are not x_ij.
func (m *assignmentProgram) addDeviations(services int) {
	var demand, static []solver.Term
	for _, r := range m.of {
		demand = append(demand, solver.Term{Row: r.demandOver, Value: -1}, solver.Term{Row: r.demandUnder, Value: 1})
		static = append(static, solver.Term{Row: r.staticOver, Value: -1}, solver.Term{Row: r.staticUnder, Value: 1})
	}
	m.AddColumn(1, 0, solver.Inf, false, demand...)
	m.AddColumn(1, 0, solver.Inf, false, static...)

	// The largest dynamic memory of a sub-cluster is a column, which each x_ij bounds from below through a row.
	m.dynamic = make([][]int, services)
	for i := range m.dynamic {
		for range m.of {
			m.dynamic[i] = append(m.dynamic[i], m.AddRow(0, solver.Inf))
		}
	}
	for j, r := range m.of {
		terms := []solver.Term{{Row: r.memory, Value: 1}}
		for i := range m.dynamic {
			terms = append(terms, solver.Term{Row: m.dynamic[i][j], Value: 1})
		}
		m.AddColumn(0, 0, solver.Inf, false, terms...)
	}
}

// terms returns the coefficients of x_ij.
func (m *assignmentProgram) terms(i, j int, v *plan.Service) []solver.Term {
	r := m.of[j]
	// Scale coefficients by the means, so that the solver's tolerances mean the same in every row.
	demand, static := v.Demand/m.meanDemand, float64(v.Static)/m.meanStatic
	terms := []solver.Term{{Row: r.demandOver, Value: demand}, {Row: r.demandUnder, Value: demand},
		{Row: r.staticOver, Value: static}, {Row: r.staticUnder, Value: static},
		{Row: r.memory, Value: static}, {Row: m.dynamic[i][j], Value: -float64(v.Dynamic) / m.meanStatic}}
	if r.rate >= 0 {
		terms = append(terms, solver.Term{Row: r.rate, Value: v.Rate})
	}
	return terms
}

// addMoveRow adds the bound on disruption (equation 11) if any service has a home.
func addMoveRow(m *solver.Problem, p *plan.AssignmentProblem) int {
	present := 0.0
	for _, v := range p.Services {
		if v.Home != plan.Nowhere {
			present += v.Load.Seconds()
		}
	}
	if present == 0 {
		return -1
	}
	return m.AddRow(-solver.Inf, present*p.MoveShare)
}

// hintOf converts an assignment to a point of the program.
func hintOf(p *plan.AssignmentProblem, home []int32, columns, first int, meanStatic float64) []float64 {
	parts := len(p.SubClusters)
	x := make([]float64, columns)
	x[0], x[1] = Deviations(*p, home)
	for i, v := range p.Services {
		x[2+int(home[i])] = max(x[2+int(home[i])], float64(v.Dynamic)/meanStatic)
		x[first+i*parts+int(home[i])] = 1
	}
	return x
}

// Deviations returns ΔR/R̄ and ΔS/S̄ of homes in equal sub-clusters.
func Deviations(p plan.AssignmentProblem, home []int32) (demand, static float64) {
	parts := len(p.SubClusters)
	demands, statics := make([]float64, parts), make([]float64, parts)
	var demandSum, staticSum float64
	for i, v := range p.Services {
		demands[home[i]] += v.Demand
		statics[home[i]] += float64(v.Static)
		demandSum, staticSum = demandSum+v.Demand, staticSum+float64(v.Static)
	}
	for j := range parts {
		demand = max(demand, math.Abs(demands[j]*float64(parts)/demandSum-1))
		static = max(static, math.Abs(statics[j]*float64(parts)/staticSum-1))
	}
	return demand, static
}
