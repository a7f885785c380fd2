// Package symphony makes the figures and tables of the Symphony paper, one call each. Results in virtual time are
// exact and the same on every machine. The package measures nothing that needs hardware.
package symphony

import (
	"context"
	"fmt"
	"time"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
)

// Inputs are the parameters of the figures.
type Inputs struct {
	Goodput goodput.Options // of every goodput search
	Cells   int             // of figure 4's 7,560
	Span    time.Duration   // of figure 14's changing workload
	GPUs    int             // of figure 14's cluster; the paper has 512
	Limit   time.Duration   // of figure 15's random solver and of its MILP
	// Progress is called with every step; it may be nil.
	Progress func(string)
}

// DefaultInputs run all figures in about half an hour on two cores.
func DefaultInputs() Inputs {
	o := goodput.DefaultOptions()
	o.Seeds, o.Span, o.Precision = 2, 15*time.Second, 0.002
	return Inputs{Goodput: o, Cells: 252, Span: 30 * time.Minute, GPUs: 512, Limit: time.Second}
}

// Validate returns an error for an input out of range.
func (in *Inputs) Validate() error {
	switch {
	case in.Goodput.Seeds < 1 || in.Goodput.Seeds > 1000:
		return fmt.Errorf("seeds %d: want 1 to 1000", in.Goodput.Seeds)
	case in.Goodput.Span < time.Second || in.Goodput.Span > time.Hour:
		return fmt.Errorf("span %v: want 1s to 1h", in.Goodput.Span)
	case in.Cells < 1 || in.Cells > len(table3()):
		return fmt.Errorf("cells %d: want 1 to %d", in.Cells, len(table3()))
	case in.Span < time.Minute || in.Span > 6*time.Hour:
		return fmt.Errorf("workload of %v: want 1m to 6h", in.Span)
	case in.GPUs < 1 || in.GPUs > 10_000:
		return fmt.Errorf("gpus %d: want 1 to 10000", in.GPUs)
	case in.Limit < 10*time.Millisecond || in.Limit > time.Hour:
		return fmt.Errorf("limit %v: want 10ms to 1h", in.Limit)
	}
	return nil
}

func (in *Inputs) say(format string, args ...any) {
	if in.Progress != nil {
		in.Progress(fmt.Sprintf(format, args...))
	}
}

// Figure is a figure or table of the paper, or a result that its text states.
type Figure struct {
	ID, Title string
	Draw      func(context.Context, *Inputs) (*figure.Drawing, error)
}

// Figures are all figures in virtual time, in the paper's order, then the results in the text.
var Figures []Figure

func init() {
	Figures = []Figure{
		// §3: the motivation of the design.
		{"t1", "ℓ(b) = αb + β and memory of six models", drawProfiles},
		{"t2", "uncoordinated round robin makes arrivals burstier", drawRoundRobin},
		{"f1", "goodput of Nexus over the number of frontends", drawFrontends},

		// §4 and §5: the results.
		{"f4", "goodput of deferring over dispatching at once", drawDeferral},
		{"f6", "goodput of the mixed zoos on two kinds of GPU", drawZoos},
		{"f7", "goodput over the SLO, popularity and burstiness", drawSLOs},
		{"t4", "analytic and simulated goodput of one model on 8 GPUs", drawAnalytic},
		{"f8", "batch sizes at that load", drawBatches},
		{"f9", "queueing delays at that load", drawDelays},
		{"f10", "goodput beyond the highest load, busy GPUs below it", drawStability},
		{"f11", "goodput over the number of GPUs (right)", drawGPUs},
		{"f13", "goodput over the network's latency", drawNetwork},
		{"f14", "a workload that changes; 512 GPUs unless said", drawChanging},
		{"f15", "imbalance of models over sub-clusters", drawImbalance},

		// Results stated in the text.
		{"s1", "GPUs for a new model, §4.2", drawSizes},
		{"s2", "400 models in 4 parts within the solver's time, §A.1", drawSolver},
		{"s3", "the largest factor over another system, abstract and §5.1", drawFactor},
	}
}

// FindFigure returns the figure with an ID.
func FindFigure(id string) (Figure, error) {
	return figure.Find(Figures, func(f Figure) string { return f.ID }, id)
}

// Write makes a figure and writes it to a directory.
func (f Figure) Write(ctx context.Context, in *Inputs, dir string) error {
	d, err := f.Draw(ctx, in)
	if err != nil {
		return fmt.Errorf("figure %s: %w", f.ID, err)
	}
	return d.Write(dir, f.ID)
}

// comparePolicies finds the goodput of policies in settings.
func (in *Inputs) comparePolicies(ctx context.Context, settings []goodput.Setting, policies []goodput.Policy) ([]goodput.Row, error) {
	return goodput.Compare(ctx, settings, policies, in.Goodput, nil, func(r goodput.Row) { in.say("%s %s: %.0f r/s", r.Setting, r.Policy, r.Goodput) })
}

// compareNamed is comparePolicies with the names of settings and policies in `bench goodput`.
func (in *Inputs) compareNamed(ctx context.Context, settings, policies string) ([]goodput.Row, error) {
	s, err := goodput.Select(settings)
	if err != nil {
		return nil, err
	}
	p, err := goodput.Policies(policies)
	if err != nil {
		return nil, err
	}
	return in.comparePolicies(ctx, s, p)
}

// findRow returns the row of a policy in a setting; a missing row is empty.
func findRow(rows []goodput.Row, setting, policy string) goodput.Row {
	for _, r := range rows {
		if r.Setting == setting && r.Policy == policy {
			return r
		}
	}
	return goodput.Row{}
}

// over returns a ratio of goodputs; 0 if the denominator is 0.
func over(a, b goodput.Row) float64 {
	if b.Goodput == 0 {
		return 0
	}
	return a.Goodput / b.Goodput
}

// goodputHeader is the header of addGoodput's records.
var goodputHeader = []string{"setting", "policy", "goodput_rps", "bound_rps", "published_rps", "busy", "batch_mean", "seeds", "span_s"}

// addGoodput adds a record for each row.
func addGoodput(d *figure.Drawing, rows []goodput.Row) {
	for _, r := range rows {
		// Most settings have no number in the paper: leave the field empty, which is not 0.
		published := ""
		if r.Published != nil {
			published = figure.Number(*r.Published)
		}
		d.Add(r.Setting, r.Policy, r.Goodput, r.Bound, published, r.Busy, r.Batch, r.Seeds, r.SpanS)
	}
}
