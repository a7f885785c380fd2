package solver

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrUnavailable means that the module is missing and cannot be fetched.
var ErrUnavailable = errors.New("the HiGHS module is not available")

// Inf is an absent bound, with either sign.
var Inf = math.Inf(1)

// Problem is min Cost·x subject to RowLower ≤ A·x ≤ RowUpper and Lower ≤ x ≤ Upper, with A given by columns. Build it
// with AddRow and AddColumn, or fill in the fields.
type Problem struct {
	// Per column.
	Cost, Lower, Upper []float64
	Integer            []bool // nil: all columns are continuous
	// Per row.
	RowLower, RowUpper []float64
	// Column j has the coefficients Value[k] in rows Row[k] for Start[j] ≤ k < Start[j+1], so len(Start) = columns +
	// 1. A row may appear once per column.
	Start []int32
	Row   []int32
	Value []float64

	// Hint is a feasible starting point, one value per column; nil: none.
	Hint []float64
	// Gap is the relative distance to the best bound at which the search ends; 0: 10⁻⁴, HiGHS's default.
	Gap float64
	// Limit bounds the time of a search without a proof; 0: a minute. The context bounds it as well.
	Limit time.Duration
}

// Term is one coefficient of a column.
type Term struct {
	Row   int
	Value float64
}

// AddRow adds a row with lower ≤ a·x ≤ upper and returns its index.
func (p *Problem) AddRow(lower, upper float64) int {
	p.RowLower, p.RowUpper = append(p.RowLower, lower), append(p.RowUpper, upper)
	return len(p.RowLower) - 1
}

// AddColumn adds a variable in [lower, upper] with coefficients in existing rows, and returns its index.
func (p *Problem) AddColumn(cost, lower, upper float64, integer bool, terms ...Term) int {
	if len(p.Start) == 0 {
		p.Start = append(p.Start, 0)
	}

	for _, t := range terms {
		p.Row, p.Value = append(p.Row, int32(t.Row)), append(p.Value, t.Value)
	}
	p.Cost, p.Lower, p.Upper = append(p.Cost, cost), append(p.Lower, lower), append(p.Upper, upper)
	p.Integer = append(p.Integer, integer)
	p.Start = append(p.Start, int32(len(p.Row)))

	return len(p.Cost) - 1
}

// Status is how a search ended.
type Status int

// The ends of a search.
const (
	Optimal    Status = iota // proved, within Gap
	Feasible                 // the time was up: Values are feasible, without a proof
	Infeasible               // no point meets the constraints
	Unbounded                // the objective has no lower bound, or no point exists at all
	Unsolved                 // the time was up before any feasible point was found
)

// String returns the name of a status.
func (s Status) String() string {
	return [...]string{"optimal", "feasible", "infeasible", "unbounded", "unsolved"}[s]
}

// Solution is the result of a search. Values and Objective are set if Status is Optimal or Feasible.
type Solution struct {
	Status    Status
	Objective float64
	Bound     float64   // no point is better than this; equals Objective for linear programs
	Values    []float64 // per column
	RowDuals  []float64 // per row: change of the objective per unit of the row's bound; linear programs only
	Elapsed   time.Duration
}

// checkShape returns an error for a problem whose parts do not fit together.
func (p *Problem) checkShape() error {
	n, m := len(p.Cost), len(p.RowLower)
	switch {
	case n == 0:
		return fmt.Errorf("solver: no columns, want at least one")
	case len(p.Lower) != n || len(p.Upper) != n || len(p.Start) != n+1 || p.Integer != nil && len(p.Integer) != n || p.Hint != nil && len(p.Hint) != n:
		return fmt.Errorf("solver: %d costs, %d lower and %d upper bounds, %d starts, %d integer marks, %d hints, want one per column (starts: one more)",
			n, len(p.Lower), len(p.Upper), len(p.Start), len(p.Integer), len(p.Hint))
	case len(p.RowUpper) != m:
		return fmt.Errorf("solver: %d lower and %d upper row bounds, want as many", m, len(p.RowUpper))
	case len(p.Row) != len(p.Value) || p.Start[0] != 0 || int(p.Start[n]) != len(p.Row):
		return fmt.Errorf("solver: %d row indices and %d values from %d to %d, want as many, from 0", len(p.Row), len(p.Value), p.Start[0], p.Start[n])
	case math.IsNaN(p.Gap) || p.Gap < 0 || p.Limit < 0:
		return fmt.Errorf("solver: gap %v, limit %v, want neither below 0", p.Gap, p.Limit)
	}

	// Reject malformed indexes here: within the module they would access memory outside the problem.
	for j := range n {
		if p.Start[j+1] < p.Start[j] {
			return fmt.Errorf("solver: start %d is %d, before start %d at %d", j+1, p.Start[j+1], j, p.Start[j])
		}
		if math.IsNaN(p.Cost[j]) || math.IsInf(p.Cost[j], 0) || !(p.Lower[j] <= p.Upper[j]) {
			return fmt.Errorf("solver: column %d costs %v in [%v, %v], want a finite cost and an interval", j, p.Cost[j], p.Lower[j], p.Upper[j])
		}
	}

	// These comparisons also refuse NaN.
	for i := range m {
		if !(p.RowLower[i] <= p.RowUpper[i]) {
			return fmt.Errorf("solver: row %d lies in [%v, %v], want an interval", i, p.RowLower[i], p.RowUpper[i])
		}
	}
	for k, i := range p.Row {
		if i < 0 || int(i) >= m || math.IsNaN(p.Value[k]) || math.IsInf(p.Value[k], 0) {
			return fmt.Errorf("solver: coefficient %d is %v in row %d, want a finite one in row 0 to %d", k, p.Value[k], i, m-1)
		}
	}
	return nil
}

// hasIntegers reports whether any column must be an integer.
func (p *Problem) hasIntegers() bool {
	for _, integer := range p.Integer {
		if integer {
			return true
		}
	}
	return false
}
