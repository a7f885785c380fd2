package goodput

import (
	"context"
	"fmt"
	"math"
	"strings"

	"downbeat.dev/bench/median"
	"downbeat.dev/bench/policy"
	"downbeat.dev/core/sim"
)

// Row is the result of one policy in one setting. Its JSON form is one line of `-o json`.
type Row struct {
	Setting   string   `json:"setting"`
	Policy    string   `json:"policy"`
	Goodput   float64  `json:"goodput_rps"`
	BadPct    float64  `json:"bad_pct"` // of the worst model, at the goodput
	Bound     float64  `json:"bound_rps"`
	Published *float64 `json:"published_rps"` // Symphony's own number in the paper; null: not printed
	Seeds     int      `json:"seeds"`
	SeedBase  uint64   `json:"seed_base,omitempty"` // the seeds are this + 1 … this + Seeds
	SpanS     float64  `json:"span_s"`
	Rates     string   `json:"rates"` // estimated or known
	CtrlUS    float64  `json:"ctrl_us"`
	DataUS    float64  `json:"data_us"`
	Busy      float64  `json:"busy"` // share of the GPUs' time
	Batch     float64  `json:"batch_mean"`
	FlatTop   *float64 `json:"flat_top,omitempty"` // goodput at the highest load over the best
	BusyGap   *float64 `json:"busy_gap,omitempty"` // largest |busy − load/goodput| up to the goodput
	Points    []Point  `json:"points,omitempty"`

	sizes  []int     // sizes[b]: requests that ran in batches of b
	delays []float64 // queueing delay in ms at 0, 1, … 100 %
}

// QueueingMS returns percentiles 0 to 100 of the time from arrival to start, in ms. It returns nil unless the setting
// asks for details and r comes from Compare.
func (r Row) QueueingMS() []float64 { return r.delays }

// Point is a policy at a multiple of its goodput.
type Point struct {
	Load    float64 `json:"load"`
	Offered float64 `json:"offered_rps"`
	Good    float64 `json:"good_rps"`
	BadPct  float64 `json:"bad_pct"` // of all requests
	Busy    float64 `json:"busy"`
}

// Policies returns the policies in a comma-separated list: "all", names, or the part of a name before a dash.
func Policies(list string) ([]Policy, error) {
	every := policy.All()
	var names []string
	for _, p := range every {
		names = append(names, p.Name)
	}

	var out []Policy
	for _, name := range strings.Split(list, ",") {
		name = strings.TrimSpace(name)
		hit := false
		for _, p := range every {
			// A policy's exact name does not also select the policies with that prefix.
			if name == "all" || p.Name == name || strings.HasPrefix(p.Name, name+"-") && !isExact(names, name) {
				hit = true
				out = append(out, Policy{p.Name, p.New})
			}
		}

		if !hit {
			return nil, fmt.Errorf("policy %q: want all, or one of %s", name, strings.Join(names, ", "))
		}
	}
	return out, nil
}

func isExact(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// Compare finds every policy's goodput in every setting, calls progress for each row, and returns the rows in order.
// It takes rows from done, an earlier run with equal options, without calling progress. It stops with ctx's error.
func Compare(ctx context.Context, settings []Setting, policies []Policy, o Options, done []Row, progress func(Row)) ([]Row, error) {
	var rows []Row
	for _, s := range settings {
		if earlier := rowsOf(done, s, policies, o); len(earlier) == len(policies) {
			rows = append(rows, earlier...)
			continue
		}

		// The longest workload is that of the highest load of a sweep.
		most := s.Capacity() * 1.05
		for _, l := range s.Loads {
			most = max(most, s.Capacity()*1.05*l)
		}
		w, err := Prepare(s, o, most)
		if err != nil {
			return nil, err
		}

		w.ctx = ctx
		limit := w.Bound()
		for _, p := range policies {
			if earlier := rowsOf(done, s, []Policy{p}, o); len(earlier) > 0 {
				rows = append(rows, earlier[0])
				continue
			}

			r := w.measureRow(p)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			r.Bound = limit
			rows = append(rows, r)
			progress(r)
		}
	}
	return rows, nil
}

// rowsOf returns the rows of policies in a setting that were measured with the same options.
func rowsOf(done []Row, s Setting, policies []Policy, o Options) []Row {
	var out []Row
	for _, p := range policies {
		want := newRow(s, p, o)
		// Compare everything that changes a result; measure a row with other options again.
		for _, r := range done {
			if r.Setting == want.Setting && r.Policy == want.Policy && r.Seeds == want.Seeds && r.SeedBase == want.SeedBase &&
				r.SpanS == want.SpanS && r.Rates == want.Rates && r.CtrlUS == want.CtrlUS && r.DataUS == want.DataUS {
				out = append(out, r)
				break
			}
		}
	}
	return out
}

// newRow returns a row with the parameters of its measurement.
func newRow(s Setting, p Policy, o Options) Row {
	r := Row{Setting: s.Name, Policy: p.Name, Seeds: o.Seeds, SeedBase: o.SeedBase, SpanS: o.Span.Seconds(), Rates: "estimated",
		CtrlUS: float64(o.Ctrl+s.Ctrl) / 1e3, DataUS: float64(o.Data) / 1e3}
	if o.Known {
		r.Rates = "known"
	}
	return r
}

// measureRow measures one policy.
func (w *Workload) measureRow(p Policy) Row {
	r := newRow(w.Setting, p, w.o)

	// A published number is the paper's system's, whatever the policy is called here.
	family, _, _ := strings.Cut(p.Name, "-")
	if family == "downbeat" {
		family = "symphony"
	}

	if v, ok := w.Published[family]; ok {
		r.Published = &v
	}

	// A guess near the goodput of good policies shortens the search.
	r.Goodput = w.Search(p, w.Capacity()*0.9)
	if r.Goodput <= 0 {
		return r
	}

	// Run once more at the goodput for the other columns of the table.
	sum := w.Run(p, r.Goodput)
	worst, _ := sum.BadShare()
	r.BadPct, r.Busy, r.Batch, r.sizes = 100*worst, sum.Busy, sum.BatchMean(), sum.SizeSum
	if w.Detail {
		r.delays = w.delayPercentiles(p, r.Goodput)
	}

	w.sweepLoads(p, &r)
	return r
}

// sweepLoads runs the setting's multiples of the goodput.
func (w *Workload) sweepLoads(p Policy, r *Row) {
	best := r.Goodput
	for _, l := range w.Loads {
		sum := w.Run(p, l*r.Goodput)
		_, bad := sum.BadShare()
		pt := Point{Load: l, Offered: l * r.Goodput, Good: sum.Good(w.o), BadPct: 100 * bad, Busy: sum.Busy}
		best = max(best, pt.Good)
		r.Points = append(r.Points, pt)

		// Below its goodput, a scheduler should keep GPUs busy in proportion to the load …
		if l <= 1 {
			gap := math.Abs(pt.Busy - l)
			if r.BusyGap == nil || gap > *r.BusyGap {
				r.BusyGap = &gap
			}
		}
	}

	// … and beyond it, it should not lose goodput.
	if n := len(r.Points); n > 0 && r.Points[n-1].Load > 1 {
		top := r.Points[n-1].Good / best
		r.FlatTop = &top
	}
}

// delayPercentiles returns percentiles 0…100 of the time from arrival to the start of the batch, in ms, over the
// requests that ran.
func (w *Workload) delayPercentiles(p Policy, rate float64) []float64 {
	var all []float64
	for i := range w.units {
		world := w.World(i, rate, nil)
		world.Trace = func(gpu, model int32, start, finish sim.Time, requests []int32) {
			for _, r := range requests {
				all = append(all, float64(start.Sub(sim.Time(world.Arrivals[r].At)))/1e6)
			}
		}
		world.Run(p.New(world))
	}

	if len(all) == 0 {
		return nil
	}

	percents := make([]float64, 101)
	for p := range percents {
		percents[p] = float64(p)
	}
	return median.Percentiles(all, percents...)
}
