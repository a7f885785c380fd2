package reconfigure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"downbeat.dev/core/swarm"
)

// Options are the options of the runs.
type Options struct {
	Load     float64       // offered, as a share of the GPUs' capacity in full batches
	GPUs     int           // of each sub-cluster
	Clusters int           // sub-clusters
	Models   int           // a multiple of Clusters
	Share    float64       // share of the models that one plan moves
	Moves    int           // moves of one model, each in a plan of its own
	LoadTime time.Duration // of a model on one GPU, before its warm-up
	Span     time.Duration // of a run; the moves of one model take as long as they need
	Seed     uint64
}

// DefaultOptions move 5 % of 80 models at 80 % load, and one of them 100 times.
func DefaultOptions() Options {
	return Options{Load: 0.8, GPUs: 8, Clusters: 4, Models: 80, Share: 0.05, Moves: 100, LoadTime: time.Second, Span: 2 * time.Minute, Seed: 1}
}

// Validate returns an error for an option out of range.
func (o Options) Validate() error {
	switch {
	// The condition is also true for NaN.
	case !(o.Load > 0 && o.Load <= 1.5):
		return fmt.Errorf("load %v: want more than 0, at most 1.5", o.Load)
	case o.GPUs < 2 || o.GPUs > 256 || o.GPUs%2 != 0:
		return fmt.Errorf("gpus %d: want an even number, 2 to 256", o.GPUs)
	case o.Clusters < 2 || o.Clusters > 64:
		return fmt.Errorf("clusters %d: want 2 to 64", o.Clusters)
	case o.Models < o.Clusters || o.Models%o.Clusters != 0 || o.Models > 4096:
		return fmt.Errorf("models %d: want a multiple of %d clusters, up to 4096", o.Models, o.Clusters)
	case !(o.Share > 0 && o.Share <= 0.5):
		return fmt.Errorf("share %v: want more than 0, at most 0.5", o.Share)
	case o.Moves < 1 || o.Moves > 10_000:
		return fmt.Errorf("moves %d: want 1 to 10000", o.Moves)
	case o.LoadTime < 0 || o.LoadTime > time.Minute:
		return fmt.Errorf("load-time %v: want 0 to 1m", o.LoadTime)
	case o.Span < 10*time.Second || o.Span > time.Hour:
		return fmt.Errorf("span %v: want 10s to 1h", o.Span)
	}
	return nil
}

// Row is the result of one way of moving models. Bad requests are those without an answer in time.
type Row struct {
	Scenario       string  `json:"scenario"`
	Moved          int     `json:"moved"`          // moves of models
	LoadShare      float64 `json:"load_share"`     // offered, as a share of the GPUs' capacity in full batches
	BadPctBefore   float64 `json:"bad_pct_before"` // with the same arrivals and no moves
	BadPctDuring   float64 `json:"bad_pct_during"`
	MemoryExceeded int     `json:"memory_exceeded"` // loads that found no room
	Steps          int     `json:"steps"`
	GivenBack      int     `json:"given_back"` // requests whose model was no longer loaded
	Nowhere        int     `json:"nowhere"`    // models that no GPU offers at the end
	Misplaced      int     `json:"misplaced"`  // models that are not where the last plan puts them
	Kills          int     `json:"kills"`      // of the scheduler, within a plan
	Requests       int     `json:"requests"`
	GPUs           int     `json:"gpus"`
	Models         int     `json:"models"`
	SpanS          float64 `json:"span_s"`
	Seed           uint64  `json:"seed"`
}

// Scenarios returns the names that Run accepts.
func Scenarios() []string { return []string{"share", "again", "killed"} }

// CheckScenarios returns an error if a name is none of Scenarios.
func CheckScenarios(names []string) error {
	for _, name := range names {
		if !slices.Contains(Scenarios(), name) {
			return fmt.Errorf("scenario %q: want some of %v", name, Scenarios())
		}
	}
	return nil
}

// Run runs scenarios, and calls progress with each row.
func Run(ctx context.Context, o Options, scenarios []string, progress func(Row)) ([]Row, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := CheckScenarios(scenarios); err != nil {
		return nil, err
	}

	var rows []Row
	for _, name := range scenarios {
		row, err := map[string]func(context.Context, Options) (Row, error){"share": runShare, "again": runAgain, "killed": runKilled}[name](ctx, o)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", name, err)
		}
		row.Scenario, row.Seed = name, o.Seed
		rows = append(rows, row)
		progress(row)
	}
	return rows, nil
}

// world returns the cluster of the runs: two backends per sub-cluster, exact GPUs, the network of a rack.
func (o Options) world() swarm.Options {
	return swarm.Options{Seed: o.Seed, Backends: 2 * o.Clusters, GPUs: o.GPUs / 2, Clusters: o.Clusters, Models: o.Models, Frontends: 2, Requests: 1,
		Span: swarm.Duration(o.Span), Load: o.Load, LoadTime: swarm.Duration(o.LoadTime), Eager: true, LiveMax: 1 << 15,
		Delay: 20e3, Vary: 20e3, Ctrl: 40e3, Data: 1e3, Prompt: 0.3}
}

// runShare moves a share of the models in one plan.
func runShare(ctx context.Context, o Options) (Row, error) {
	w := o.world()
	w.Moved = max(1, int(o.Share*float64(o.Models)+0.5))
	return compareRuns(ctx, w)
}

// runAgain moves one model repeatedly. It uses two sub-clusters, and models that load in a tenth of the time, to
// avoid an hour of virtual time.
func runAgain(ctx context.Context, o Options) (Row, error) {
	o.Models, o.Clusters, o.LoadTime = 2*o.Models/o.Clusters, 2, o.LoadTime/10
	w := o.world()
	w.Again = o.Moves

	// Each GPU loads and warms up in turn: 16 batches of 4 to 25 ms each, plus a check of whether the plan has ended.
	each := time.Duration(o.GPUs) * (o.LoadTime + 400*time.Millisecond)
	w.Span = swarm.Duration(time.Duration(o.Moves) * each * 3 / 2)
	return compareRuns(ctx, w)
}

// compareRuns runs a world twice with the same arrivals, without and with moves.
func compareRuns(ctx context.Context, w swarm.Options) (Row, error) {
	// A plan after the end of the run never begins.
	still := w
	still.MoveAt = 2 * w.Span
	before, err := swarm.Run(still)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return Row{}, err
	}
	during, err := swarm.Run(w)
	if err != nil {
		return Row{}, err
	}

	row := rowOf(w, during)
	row.BadPctBefore, row.BadPctDuring = badPct(before), badPct(during)
	if m := during.Moves; m.Plans != max(1, w.Again) {
		return row, fmt.Errorf("%d of %d plans ended within %v", m.Plans, max(1, w.Again), time.Duration(w.Span))
	}
	return row, nil
}

// killedSteps is the number of placements that a plan for two models orders in the smallest world, including the
// preceding fences.
const killedSteps = 20

// runKilled kills the scheduler at each step of a plan, twice: its successor applies the plan again, or puts back the
// previous placement.
func runKilled(ctx context.Context, o Options) (Row, error) {
	o.Clusters, o.GPUs, o.Models, o.Load, o.LoadTime, o.Span = 2, 4, 8, 0.04, 100*time.Millisecond, 30*time.Second
	var sum Row
	for step := 1; step <= killedSteps; step++ {
		for _, undo := range []bool{false, true} {
			// Use a new world for each death, so that no plan depends on an earlier one.
			w := o.world()
			w.Seed, w.Moved, w.Schedulers, w.KillAt, w.Undo = o.Seed+uint64(step), 2, 2, step, undo
			r, err := swarm.Run(w)
			if err = errors.Join(err, ctx.Err()); err != nil {
				return sum, fmt.Errorf("killed at step %d: %w", step, err)
			}
			x := rowOf(w, r)
			sum.Moved, sum.MemoryExceeded, sum.Steps, sum.GivenBack = sum.Moved+x.Moved, sum.MemoryExceeded+x.MemoryExceeded, sum.Steps+x.Steps, sum.GivenBack+x.GivenBack
			sum.Nowhere, sum.Misplaced, sum.Kills, sum.Requests = sum.Nowhere+x.Nowhere, sum.Misplaced+x.Misplaced, sum.Kills+x.Kills, sum.Requests+x.Requests
			sum.GPUs, sum.Models, sum.LoadShare, sum.SpanS = x.GPUs, x.Models, x.LoadShare, sum.SpanS+x.SpanS
			sum.BadPctDuring += badPct(r) / (2 * killedSteps)
		}
	}
	return sum, nil
}

// badPct returns the percentage of calls without an answer in time.
func badPct(r *swarm.Report) float64 { return 100 * float64(r.Calls-r.Good) / float64(max(1, r.Calls)) }

func rowOf(w swarm.Options, r *swarm.Report) Row {
	m := r.Moves
	return Row{Moved: m.Moved, LoadShare: w.Load, MemoryExceeded: m.MemoryExceeded, Steps: m.Steps, GivenBack: m.GivenBack, Nowhere: m.Homeless, Misplaced: m.Elsewhere,
		Kills: m.Kills, Requests: r.Calls, GPUs: w.Backends * w.GPUs, Models: w.Models, SpanS: time.Duration(w.Span).Seconds()}
}

// WriteTable prints rows for people.
func WriteTable(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SCENARIO\tGPUS\tMODELS\tMOVED\tSTEPS\tREQUESTS\tBAD BEFORE\tBAD DURING\tMEMORY EXCEEDED\tNOWHERE\tMISPLACED\tKILLS")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%.4f %%\t%.4f %%\t%d\t%d\t%d\t%d\n", r.Scenario, r.GPUs, r.Models, r.Moved, r.Steps, r.Requests,
			r.BadPctBefore, r.BadPctDuring, r.MemoryExceeded, r.Nowhere, r.Misplaced, r.Kills)
	}
	return w.Flush()
}
