package accuracy

import (
	"context"
	"fmt"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/policy/scaling"
)

// Inputs are the inputs of the figures.
type Inputs struct {
	Settings []Setting // one per trace and form of the profiles
	Seed     uint64
	Progress func(string)
}

// say reports progress.
func (in *Inputs) say(format string, args ...any) {
	if in.Progress != nil {
		in.Progress(fmt.Sprintf(format, args...))
	}
}

// compareSetting runs policies in a setting and reports each.
func (in *Inputs) compareSetting(ctx context.Context, s Setting, names string) (*Comparison, error) {
	policies, err := scaling.Select(names)
	if err != nil {
		return nil, err
	}
	return Compare(ctx, s, policies, func(r Row) {
		in.say("%s %s %s, SLO %gx, load time %gs: accuracy %.4f, violations %.5f", r.Trace, r.Data, r.Policy, r.SLOScale, r.LoadTimeS, r.EffectiveAccuracy, r.ViolationRatio)
	})
}

// Drawing is a figure's numbers, picture and claims.
type Drawing figure.Drawing

func (d *Drawing) add(fields ...any) { (*figure.Drawing)(d).Add(fields...) }

// Figure is a figure of the paper, or results that its text states.
type Figure struct {
	ID, Title string
	Draw      func(context.Context, *Inputs) (*Drawing, error)
}

// Figures are all available figures.
var Figures = []Figure{
	{"f1", "accuracy against throughput of one family's variants, and of all their placements", drawPlacements},
	{"f4", "end to end over time", drawEndToEnd},
	{"f5", "the same under bursts", drawBursts},
	{"f6", "batching rules, allocation fixed", drawBatching},
	{"f7", "ablations over time", drawAblations},
	{"f8", "over the SLO", drawScales},
	{"f9", "by family", drawFamilies},
	{"f10", "how long a plan takes", drawPlanTimes},
	{"load", "over the time that loading a variant takes (not in the paper)", drawLoadTimes},
	{"text", "results that stand in sentences, and the targets of this project", drawText},
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
	return (*figure.Drawing)(d).Write(dir, f.ID)
}
