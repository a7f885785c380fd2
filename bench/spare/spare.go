// Package spare measures spare work in virtual time: the share of the idle GPU time that learners' steps use, and the
// cost to requests.
package spare

import (
	"context"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/core/sim"
)

// Options are the options of a run.
type Options struct {
	Settings []string // of bench/goodput, by name
	Loads    []float64
	Steps    []time.Duration
	Seeds    int
	Span     time.Duration // simulated, per seed and point
}

// DefaultOptions are the two clusters of UNIFIED U7 with five seeds of 30 s.
func DefaultOptions() Options {
	return Options{Settings: []string{"table4-resnet50", "fig7-poisson-even-50ms"}, Loads: []float64{0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1},
		Steps: []time.Duration{2e6, 5e6, 10e6}, Seeds: 5, Span: 30e9}
}

// Row is one setting at one load with one length of steps. It compares learners on with learners off, at the same
// arrivals. Its JSON form is one line of `-o json`.
type Row struct {
	Setting string  `json:"setting"`
	PeakRPS float64 `json:"peak_rps"` // the setting's goodput without learners
	Load    float64 `json:"load_share"`
	StepMS  float64 `json:"step_ms"`
	Idle    float64 `json:"idle_share"`    // of the GPUs' time, learners off
	Spare   float64 `json:"spare_share"`   // of the GPUs' time, spent on steps
	Ratio   float64 `json:"goodput_ratio"` // requests answered in time with learners, over those without
	Added   float64 `json:"bad_added_pct"` // of the requests
	Seeds   int     `json:"seeds"`
	SpanS   float64 `json:"span_s"`
}

// Used returns the share of the idle time that steps used.
func (r *Row) Used() float64 { return r.Spare / max(r.Idle, 1e-9) }

// Run measures every setting at every load with every length of steps, and calls progress with each row.
func Run(ctx context.Context, o Options, progress func(Row)) ([]Row, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}

	var rows []Row
	for _, name := range o.Settings {
		s, err := goodput.One(name)
		if err != nil {
			return nil, err
		}

		g := goodput.DefaultOptions()
		g.Seeds, g.Span = o.Seeds, o.Span
		w, err := goodput.Prepare(s, g, s.Capacity()*1.05)
		if err != nil {
			return nil, err
		}

		// Loads are shares of the setting's goodput without learners.
		peak := w.Search(policy(0), s.Capacity()*0.9)
		for _, load := range o.Loads {
			if err := ctx.Err(); err != nil {
				return nil, err
			}

			// One run without learners serves for comparison with all lengths of steps: the arrivals are the same.
			off := w.Run(policy(0), load*peak)
			for _, step := range o.Steps {
				r := Row{Setting: name, PeakRPS: math.Round(peak), Load: load, StepMS: float64(step) / 1e6, Idle: 1 - off.Busy, Seeds: o.Seeds, SpanS: o.Span.Seconds()}
				r.compare(off, w.Run(policy(step), load*peak))
				progress(r)
				rows = append(rows, r)
			}
		}
	}
	return rows, nil
}

// Check returns an error for invalid options.
func (o *Options) Check() error {
	for _, name := range o.Settings {
		if _, err := goodput.One(name); err != nil {
			return err
		}
	}

	for _, l := range o.Loads {
		// The condition is also true for NaN.
		if !(l > 0 && l <= 2) {
			return fmt.Errorf("load %v: want above 0 and at most 2 of the peak", l)
		}
	}

	for _, s := range o.Steps {
		if s <= 0 || s > 10*time.Millisecond {
			return fmt.Errorf("step %v: want above 0 and at most 10ms", s)
		}
	}

	if o.Seeds < 1 || o.Seeds > 1000 || o.Span < time.Second || o.Span > time.Hour {
		return fmt.Errorf("seeds = %d, span = %v: want 1 to 1000 and a second to an hour", o.Seeds, o.Span)
	}
	return nil
}

// policy returns the scheduler with one learner whose steps take 0.7 to 1 of a length; 0: without learners.
func policy(step time.Duration) goodput.Policy {
	return goodput.Policy{Name: "downbeat", New: func(w *sim.World) sim.Server {
		// The seed follows from the workload, so that a run can be repeated.
		if step > 0 {
			w.Learners = []*sim.Learner{{Step: sim.Duration(step), Shortest: 0.7, Seed: uint64(len(w.Arrivals))}}
		}
		return sim.NewDownbeat(w)
	}}
}

// compare sets the differences between the runs with and without learners.
func (r *Row) compare(off, on *goodput.Sum) {
	// Both runs have the same requests, so their counts can be subtracted.
	total, bad := off.Count()
	_, badOn := on.Count()
	r.Spare = on.Spare
	r.Ratio = float64(total-badOn) / float64(total-bad)
	r.Added = 100 * float64(badOn-bad) / float64(total)
}

// WriteTable prints rows for people.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "setting\tload\tstep ms\tidle\tspare\tused\tgoodput ratio\tbad added %\t")
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(t, "%s\t%.2f\t%g\t%.3f\t%.3f\t%.3f\t%.5f\t%.4f\t\n", r.Setting, r.Load, r.StepMS, r.Idle, r.Spare, r.Used(), r.Ratio, r.Added)
	}
	return t.Flush()
}

// Draw draws the share of the idle time that steps use over the load, one panel per setting.
func Draw(w io.Writer, rows []Row) error {
	var panels []chart.Panel
	for _, r := range rows {
		// Rows of a setting are consecutive.
		if n := len(panels); n == 0 || panels[n-1].Title != r.Setting {
			panels = append(panels, chart.Panel{Title: r.Setting, XLabel: "load, of the peak", YLabel: "share of the GPUs' time"})
		}

		p := &panels[len(panels)-1]
		p.Add("idle without learners", r.Load, r.Idle)
		p.Add(fmt.Sprintf("steps of %g ms", r.StepMS), r.Load, r.Spare)
	}
	return chart.Draw(w, panels)
}
