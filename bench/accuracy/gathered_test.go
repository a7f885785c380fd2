package accuracy

import (
	"fmt"
	"math"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/family"
	"downbeat.dev/bench/policy/scaling"
	"downbeat.dev/bench/solver"
	"downbeat.dev/core/sim"
)

// gathered is the linear program of a lower bound of the largest drop over a second, decision 0365. It knows all
// arrivals of some whole seconds. A request costs no less than its share of the largest batch that can gather around
// its arrival and end within the SLO, its work lies between its arrival and its deadline, and every request is served.
type gathered struct {
	w       *sim.World
	devices []int
	from    int // the first second
	p       solver.Problem
	time    [][]int        // rows that bound the devices' time, by slot and kind
	drops   []int          // rows that bound the drop, by second
	groups  map[string]int // row that counts the requests which cost the same, by their costs and slot
}

// slotsPerSecond is the number of slots of a second in which devices' time is bounded.
const slotsPerSecond = 4

// leastLargestDrop returns a bound below which the largest drop of seconds from … to-1 does not fall.
func leastLargestDrop(t *testing.T, w *sim.World, devices []int, from, to int) float64 {
	x := &gathered{w: w, devices: devices, from: from, groups: map[string]int{}}
	arrived := make([]float64, to-from)
	for _, a := range w.Arrivals {
		if s := int(a.At/1e9) - from; s >= 0 && s < len(arrived) {
			arrived[s]++
		}
	}

	// The first column is the largest drop.
	var terms []solver.Term
	for _, n := range arrived {
		x.drops = append(x.drops, x.p.AddRow(-solver.Inf, 0))
		terms = append(terms, solver.Term{Row: x.drops[len(x.drops)-1], Value: -n})
	}
	x.p.AddColumn(1, 0, 1, false, terms...)
	for f := range w.Models {
		x.addFamily(f, to)
	}

	s, err := solver.Solve(t.Context(), x.p)
	if err != nil || s.Status != solver.Optimal {
		t.Fatalf("the solver ends with %v, %v", s.Status, err)
	}
	return s.Objective
}

// addFamily adds a family's requests, those that cost the same in the same slot together.
func (x *gathered) addFamily(f, to int) {
	var times []time.Duration
	for _, a := range x.w.Arrivals {
		if int(a.Model) == f {
			times = append(times, time.Duration(a.At))
		}
	}

	for i, at := range times {
		if at < time.Duration(x.from)*time.Second || at >= time.Duration(to)*time.Second {
			continue
		}
		costs := x.costs(f, times, i)
		slot := int((at - time.Duration(x.from)*time.Second) * slotsPerSecond / time.Second)
		key := fmt.Sprint(f, slot, costs)
		row, known := x.groups[key]
		if !known {
			row = x.p.AddRow(0, 0)
			x.groups[key] = row
			x.addWays(f, slot, row, costs)
		}
		x.p.RowLower[row]++
		x.p.RowUpper[row]++
	}
}

// costs returns the least device time of request i by variant and kind, in seconds; +Inf if none ends in time.
func (x *gathered) costs(f int, times []time.Duration, i int) (costs []float64) {
	m := &x.w.Models[f]
	for v := range m.Variants {
		for k := range x.devices {
			best := math.Inf(1)
			if p := m.Variants[v].Profiles[k]; p != nil {
				for b := 1; b <= p.Max() && p.Exec(b) <= time.Duration(m.SLO); b++ {
					c := p.Exec(b).Seconds() / float64(b)
					if c < best && gathers(times, i, b, time.Duration(m.SLO)-p.Exec(b)) {
						best = c
					}
				}
			}
			costs = append(costs, best)
		}
	}
	return costs
}

// gathers reports whether request i is one of b requests that come within a time.
func gathers(times []time.Duration, i, b int, within time.Duration) bool {
	for first := max(0, i-b+1); first <= i && first+b <= len(times); first++ {
		if times[first+b-1]-times[first] <= within {
			return true
		}
	}
	return false
}

// addWays adds the ways to answer the requests of a group: variants, kinds, and slots until their deadlines.
func (x *gathered) addWays(f, slot, row int, costs []float64) {
	m := &x.w.Models[f]
	until := int(float64(slot+1) + float64(m.SLO)/1e9*slotsPerSecond)
	for len(x.time) <= until {
		var rows []int
		for _, n := range x.devices {
			rows = append(rows, x.p.AddRow(-solver.Inf, float64(n)/slotsPerSecond))
		}
		x.time = append(x.time, rows)
	}

	for way, cost := range costs {
		if math.IsInf(cost, 1) {
			continue
		}
		lost := solver.Term{Row: x.drops[slot/slotsPerSecond], Value: 1 - m.Variants[way/len(x.devices)].Accuracy}
		for at := slot; at <= until; at++ {
			x.p.AddColumn(0, 0, solver.Inf, false, solver.Term{Row: row, Value: 1}, lost, solver.Term{Row: x.time[at][way%len(x.devices)], Value: cost})
		}
	}
}

// TestLargestDropIsAboveItsBound: with the arrivals known and batches that can gather, the worst seconds of a run have
// a bound that the run does not beat. It prints both, and what each family lost. PROTEUS_DATA names a directory with
// Proteus's traces and profiles, which are then used in place of made ones.
func TestLargestDropIsAboveItsBound(t *testing.T) {
	const around = 4 // seconds before and after the worst one: a burst is longer than the largest SLO
	for _, s := range gatheredSettings(t) {
		policies, err := scaling.Select("downbeat")
		if err != nil {
			t.Fatal(err)
		}
		c, err := Compare(t.Context(), s, policies, nil)
		requireSolver(t, err)
		w, err := s.World()
		if err != nil {
			t.Fatal(err)
		}

		m := c.Results[0].Measured
		drops := m.Drops(1)
		worst := slices.Index(drops, slices.Max(drops))
		from, to := max(0, worst-around), min(len(drops), worst+around+1)
		bound := leastLargestDrop(t, w, s.counts(), from, to)
		t.Logf("%s, %s: second %d loses %.2f %%, its own bound %.2f %%; of seconds %d to %d one loses %.2f %% at least, with the arrivals known: %s", s.Trace.Name, s.Zoo.Name, worst,
			100*drops[worst], 100*(1-c.Bounds.Seconds[worst]), from, to-1, 100*bound, lostBy(&s, m, worst))
		if bound > slices.Max(drops[from:to])+1e-9 && c.Results[0].Served == c.Results[0].Requests {
			t.Errorf("%s, %s: the bound is %v, the run lost %v", s.Trace.Name, s.Zoo.Name, bound, slices.Max(drops[from:to]))
		}
	}
}

// lostBy lists what each family contributes to a second's drop, in points, the largest part first.
func lostBy(s *Setting, m *Measured, second int) string {
	lost := func(f int) float64 {
		return 100 * (float64(m.BySecond[f][second].Served) - m.BySecond[f][second].Accuracy) / float64(m.Seconds[second].Served)
	}
	var order []int
	for f := range m.BySecond {
		order = append(order, f)
	}
	sort.SliceStable(order, func(i, j int) bool { return lost(order[i]) > lost(order[j]) })

	var b strings.Builder
	for _, f := range order[:min(4, len(order))] {
		fmt.Fprintf(&b, " %s %.2f", s.Trace.Families[f], lost(f))
	}
	return b.String()
}

// gatheredSettings returns made families under a made trace, or Proteus's traces and profiles.
func gatheredSettings(t *testing.T) (out []Setting) {
	dir := os.Getenv("PROTEUS_DATA")
	if dir == "" {
		return []Setting{shortSetting(t, "bursty", 150)}
	}

	s := DefaultSetting()
	zoo, err := family.ReadZoo(os.DirFS(dir), family.ColumnMedian)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"zipf_exponential", "zipf_exponential_bursty"} {
		if s.Trace, err = family.ReadTrace(os.DirFS(dir+"/"+name), name); err != nil {
			t.Fatal(err)
		}
		for _, z := range []*family.Zoo{zoo, zoo.Repair()} {
			s.Zoo = z
			out = append(out, s)
		}
	}
	return out
}
