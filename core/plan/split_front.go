package plan

import (
	"math"
	"sort"
	"time"
)

// point is one way through a part of an application: its budget, and its cost in GPUs.
type point struct {
	budget      time.Duration
	cost        float64
	left, right int32 // the points of the parts that it consists of
}

// front holds the ways through a part of an application that no other way beats: budgets ascend, costs descend.
type front struct {
	points      []point
	stage       int // of a leaf, or Nowhere
	left, right *front
}

// splitting is one run of SplitLatency.
type splitting struct {
	app        *Application
	latency    time.Duration
	resolution int
}

// makeLeaf makes the front of a single stage: a point for each target batch. Budgets include the hop after the stage.
func (s *splitting) makeLeaf(j int, rate float64) *front {
	stage := &s.app.Stages[j]
	if stage.Profile == nil {
		return &front{points: []point{{budget: stage.Fixed + s.app.Hop}}, stage: j}
	}

	// Leave out batches that cost more per request than a smaller one.
	f := &front{stage: j}
	all := stage.OthersRate + rate*stage.FanOut
	for b := 1; b <= stage.Profile.Max(); b++ {
		budget := gatherTime(all, b) + stage.Profile.Exec(b) + s.app.Hop
		if budget > s.latency || budget < 0 {
			break
		}
		cost := rate * stage.FanOut * stage.Profile.Exec(b).Seconds() / float64(b)
		if last := len(f.points) - 1; last < 0 || cost < f.points[last].cost {
			f.points = append(f.points, point{budget: budget, cost: cost})
		}
	}
	return f
}

// composeSeries composes two parts that follow one another. Of all pairs of points it keeps the cheapest in each
// two-thousandth of the latency, with its exact budget.
func (s *splitting) composeSeries(a, b *front) *front {
	if a == nil || b == nil {
		return eitherFront(a, b)
	}
	step := max(1, s.latency/time.Duration(s.resolution))

	// One cell for each stretch of time keeps the front small. The time of a point is exact, so rounding does not add
	// up over stages.
	cells := make([]point, int(s.latency/step)+1)
	for i := range cells {
		cells[i].cost = math.Inf(1)
	}
	for i := range a.points {
		for k := range b.points {
			budget := a.points[i].budget + b.points[k].budget
			if budget > s.latency {
				break
			}
			cost := a.points[i].cost + b.points[k].cost
			if cell := &cells[budget/step]; cost < cell.cost || cost == cell.cost && budget < cell.budget {
				*cell = point{budget, cost, int32(i), int32(k)}
			}
		}
	}

	// A way that takes longer must cost less than all shorter ones.
	f := &front{stage: Nowhere, left: a, right: b}
	least := math.Inf(1)
	for _, cell := range cells {
		if cell.cost < least {
			least = cell.cost
			f.points = append(f.points, cell)
		}
	}
	return f
}

// composeParallel composes two parts that run side by side: both have the same budget.
func (s *splitting) composeParallel(a, b *front) *front {
	if a == nil || b == nil {
		return eitherFront(a, b)
	}
	f := &front{stage: Nowhere, left: a, right: b}
	for i, k := 0, 0; ; {
		x, y := &a.points[i], &b.points[k]
		f.points = append(f.points, point{max(x.budget, y.budget), x.cost + y.cost, int32(i), int32(k)})

		// Advance the part whose next point comes first.
		moreA, moreB := i+1 < len(a.points), k+1 < len(b.points)
		switch {
		case moreA && (!moreB || a.points[i+1].budget <= b.points[k+1].budget):
			i++
		case moreB:
			k++
		default:
			return f.prunePoints()
		}
	}
}

// prunePoints drops points that another one beats.
func (f *front) prunePoints() *front {
	kept := f.points[:0]
	for _, p := range f.points {
		if n := len(kept); n > 0 && kept[n-1].budget == p.budget {
			kept = kept[:n-1]
		}
		if n := len(kept); n == 0 || p.cost < kept[n-1].cost {
			kept = append(kept, p)
		}
	}
	f.points = kept
	return f
}

// eitherFront returns the one of two fronts that exists; a part without stages is nil.
func eitherFront(a, b *front) *front {
	if a == nil {
		return b
	}
	return a
}

// lastWithin returns the index of the last point within a budget, or of the first point if none is.
func (f *front) lastWithin(budget time.Duration) int {
	return max(0, sort.Search(len(f.points), func(i int) bool { return f.points[i].budget > budget })-1)
}

// assignBudgets writes the budgets of a point's stages, without hops.
func (f *front) assignBudgets(i int, budget []time.Duration) {
	p := f.points[i]
	if f.stage != Nowhere {
		budget[f.stage] = p.budget
		return
	}
	f.left.assignBudgets(int(p.left), budget)
	f.right.assignBudgets(int(p.right), budget)
}
