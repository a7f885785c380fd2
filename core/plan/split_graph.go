package plan

import (
	"slices"
	"time"
)

// arc is a part of an application between two moments where parts meet.
type arc struct {
	from, to int
	front    *front // nil: nothing happens in between
}

const (
	frameBegins = 0 // the moment when a frame arrives
	frameEnds   = 1 // the moment when all of it is done
)

// composeStages composes the fronts of all stages into one. Two arcs with the same ends become one in parallel. Two
// arcs become one in series if no other arc meets the moment between them (Valdes, Tarjan and Lawler 1982). If more
// than one arc is left, the stages are composed level by level instead: a path has at most one stage of each level, so
// budgets that fit the levels fit the graph. The result is exact if a single arc was left.
func (s *splitting) composeStages(leaves []*front) (root *front, exact bool) {
	arcs, moments := s.app.makeArcs(leaves)
	for {
		n := len(arcs)
		arcs = s.joinParallel(arcs)
		arcs = s.joinSeries(arcs, moments)
		if len(arcs) == 1 && arcs[0].from == frameBegins && arcs[0].to == frameEnds {
			return arcs[0].front, true
		}
		if len(arcs) == n {
			return s.composeLevels(leaves), false
		}
	}
}

// makeArcs describes the application as arcs between moments: one for each stage, and one for each result that goes from a
// stage to another, except when all stages that end at a moment feed all that begin there.
func (a *Application) makeArcs(leaves []*front) (arcs []arc, moments int) {
	n := len(a.Stages)
	needs, feeds := make([][]int32, n), make([][]int32, n)
	for j := range a.Stages {
		needs[j] = slices.Clone(a.Stages[j].After)
		slices.Sort(needs[j])
		needs[j] = slices.Compact(needs[j])
		for _, before := range needs[j] {
			feeds[before] = append(feeds[before], int32(j))
		}
	}

	// Every stage that feeds another one ends at its own moment, unless it turns out to share one.
	start, end := make([]int, n), make([]int, n)
	moments = 2
	for j := range n {
		if len(feeds[j]) > 0 {
			end[j] = moments
			moments++
		} else {
			end[j] = frameEnds
		}
	}

	for j := range n {
		if len(needs[j]) == 0 {
			continue // starts when the frame begins
		}

		// All stages that feed this one feed the same stages, which need no others: they share one moment.
		meets := true
		for _, before := range needs[j] {
			meets = meets && slices.Equal(feeds[before], feeds[needs[j][0]])
		}
		for _, beside := range feeds[needs[j][0]] {
			meets = meets && slices.Equal(needs[beside], needs[j])
		}
		if meets { // all of needs[j] end at the moment of the first
			start[j] = end[needs[j][0]]
			for _, before := range needs[j] {
				end[before] = start[j]
			}
			continue
		}
		start[j] = moments
		moments++
		for _, before := range needs[j] {
			arcs = append(arcs, arc{end[before], start[j], nil})
		}
	}

	for j := range n {
		arcs = append(arcs, arc{start[j], end[j], leaves[j]})
	}
	return arcs, moments
}

// joinParallel joins arcs with the same ends.
func (s *splitting) joinParallel(arcs []arc) []arc {
	kept := arcs[:0]
	for _, a := range arcs {
		same := slices.IndexFunc(kept, func(b arc) bool { return b.from == a.from && b.to == a.to })
		if same < 0 {
			kept = append(kept, a)
		} else {
			kept[same].front = s.composeParallel(kept[same].front, a.front)
		}
	}
	return kept
}

// joinSeries joins two arcs around a moment that only they meet.
func (s *splitting) joinSeries(arcs []arc, moments int) []arc {
	for moment := range moments {
		if moment == frameBegins || moment == frameEnds {
			continue
		}
		// Exactly two arcs meet here: one comes in and one goes out.
		in, out, count := Nowhere, Nowhere, 0
		for i, a := range arcs {
			if a.to == moment {
				in, count = i, count+1
			}
			if a.from == moment {
				out, count = i, count+1
			}
		}

		if count != 2 || in == Nowhere || out == Nowhere {
			continue
		}

		arcs[in] = arc{arcs[in].from, arcs[out].to, s.composeSeries(arcs[in].front, arcs[out].front)}
		arcs = slices.Delete(arcs, out, out+1)
	}
	return arcs
}

// composeLevels returns the levels one after another, with the stages of each level side by side.
func (s *splitting) composeLevels(leaves []*front) *front {
	level := make([]int, len(leaves))
	var fronts []*front
	for _, j := range s.app.order() {
		for _, before := range s.app.Stages[j].After {
			level[j] = max(level[j], level[before]+1)
		}
		for len(fronts) <= level[j] {
			fronts = append(fronts, nil)
		}
		fronts[level[j]] = s.composeParallel(fronts[level[j]], leaves[j])
	}

	// Every level waits for the slowest stage of the previous one, which the graph itself may not require.
	var root *front
	for _, f := range fronts {
		root = s.composeSeries(root, f)
	}
	return root
}

// distributeSlack gives the time that no path needs to the stage that saves most by it, until no stage saves anything.
func (s *splitting) distributeSlack(leaves []*front, budget []time.Duration) []time.Duration {
	for {
		until, after := s.app.longest(budget)
		best, saving, longer := Nowhere, 0.0, time.Duration(0)
		for j, f := range leaves {
			// The slack is the part of the latency that the longest path through the stage leaves.
			now := f.lastWithin(budget[j] + s.app.Hop)
			then := f.lastWithin(budget[j] + s.app.Hop + s.latency - until[j] - after[j])
			if save := f.points[now].cost - f.points[then].cost; save > saving {
				best, saving, longer = j, save, f.points[then].budget-s.app.Hop
			}
		}

		if best == Nowhere {
			return budget
		}
		budget[best] = longer
	}
}
