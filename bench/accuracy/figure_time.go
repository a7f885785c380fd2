package accuracy

import (
	"context"
	"fmt"
	"strings"

	"downbeat.dev/bench/chart"
)

const (
	baselines = "downbeat,proteus,sommelier,infaas,clipper-ht,clipper-ha"
	ablations = "downbeat,proteus,sommelier,proteus-wo-ms,proteus-wo-ab,proteus-wo-qa"
)

// pointSeconds is the number of seconds per point in figures over time.
const pointSeconds = 5

// publishedDrop is the largest accuracy drop in figure 4 (§6.2) and figure 7 (§6.5).
var publishedDrop = map[string]string{"clipper-ht": "0.2", "sommelier": "0.16", "infaas": "0.137", "proteus": "0.0485", "proteus-wo-ms": "0"}

// publishedViolations is figure 7's violation ratio as far as §6.5 states it.
var publishedViolations = map[string]string{"proteus-wo-ms": "0.18", "proteus-wo-qa": "0.1"}

// drawEndToEnd is figure 4. Traces with bursts in their names belong to figure 5.
func drawEndToEnd(ctx context.Context, in *Inputs) (*Drawing, error) {
	return drawOverTime(ctx, in, baselines, func(s Setting) bool { return !strings.Contains(s.Trace.Name, "bursty") })
}

// drawBursts is figure 5.
func drawBursts(ctx context.Context, in *Inputs) (*Drawing, error) {
	return drawOverTime(ctx, in, baselines, func(s Setting) bool { return strings.Contains(s.Trace.Name, "bursty") })
}

// drawAblations is figure 7.
func drawAblations(ctx context.Context, in *Inputs) (*Drawing, error) {
	return drawOverTime(ctx, in, ablations, func(s Setting) bool { return !strings.Contains(s.Trace.Name, "bursty") })
}

// drawOverTime writes, for every wanted setting, the served requests, the accuracy and the violations of each policy
// over time, and a summary under second "all".
func drawOverTime(ctx context.Context, in *Inputs, policies string, wanted func(Setting) bool) (*Drawing, error) {
	d := &Drawing{Header: []string{"trace", "data", "policy", "second", "measure", "value", "published"}}
	for _, s := range in.Settings {
		if !wanted(s) {
			continue
		}
		c, err := in.compareSetting(ctx, s, policies)
		if err != nil {
			return nil, err
		}
		d.addOverTime(c)
	}
	if len(d.Records) == 0 {
		return nil, fmt.Errorf("no trace of -trace has this figure's shape: figure 5 wants a name with \"bursty\", figures 4 and 7 want one without")
	}
	return d, nil
}

// addOverTime adds a comparison's records and panels.
func (d *Drawing) addOverTime(c *Comparison) {
	s := &c.Setting
	title := s.Trace.Name + ", " + s.Zoo.Name
	span := s.Trace.Span().Seconds()
	served := chart.Panel{Title: title + ": served", XLabel: "s", YLabel: "requests/s", XMax: span, YMax: 1}
	accuracy := chart.Panel{Title: title + ": accuracy", XLabel: "s", YLabel: "effective accuracy", XMax: span, YMin: 0.9, YMax: 1}
	violated := chart.Panel{Title: title + ": violations", XLabel: "s", YLabel: "violation ratio", XMax: span, YMax: 0.05}

	for _, r := range c.Results {
		for from := 0; from < len(r.Measured.Seconds); from += pointSeconds {
			var w Window
			to := min(from+pointSeconds, len(r.Measured.Seconds))
			for _, x := range r.Measured.Seconds[from:to] {
				w.add(x)
			}
			rate := float64(w.Served) / float64(to-from)
			d.add(s.Trace.Name, s.Zoo.Name, r.Policy, from, "served_rps", rate, "")
			d.add(s.Trace.Name, s.Zoo.Name, r.Policy, from, "accuracy", 1-w.Drop(), "")
			d.add(s.Trace.Name, s.Zoo.Name, r.Policy, from, "violation_ratio", w.Violations(), "")

			// Place a point at the middle of its seconds.
			at := float64(from) + pointSeconds/2.0
			served.Add(r.Policy, at, rate)
			accuracy.Add(r.Policy, at, 1-w.Drop())
			violated.Add(r.Policy, at, w.Violations())
		}

		d.addSummary(r.Row)
	}
	d.addBound(c, &accuracy, &served)
	d.Panels = append(d.Panels, served, accuracy, violated)
}

// addSummary adds a run's measures over the whole trace.
func (d *Drawing) addSummary(r Row) {
	for _, m := range []struct {
		name      string
		value     float64
		published string
	}{
		{"effective_accuracy", r.EffectiveAccuracy, ""}, {"largest_drop_1s", r.LargestDrop1s, publishedDrop[r.Policy]},
		{"largest_drop_10s", r.LargestDrop10s, publishedDrop[r.Policy]}, {"violation_ratio", r.ViolationRatio, publishedViolations[r.Policy]},
		{"throughput_rps", r.ThroughputRPS, ""}, {"worst_family_drop", r.WorstFamilyDrop, ""},
		{"lp_bound_accuracy", r.LPBoundAccuracy, ""}, {"plan_ms", r.PlanMS, ""},
	} {
		d.add(r.Trace, r.Data, r.Policy, "all", m.name, m.value, m.published)
	}
}

// addBound draws the optimum of the linear relaxation, and the demand.
func (d *Drawing) addBound(c *Comparison, accuracy, served *chart.Panel) {
	s := &c.Setting
	seconds := c.Results[0].Measured.Seconds

	// Weight the bound of each second by its requests, as in the policies' accuracy.
	for from := 0; from < len(seconds); from += pointSeconds {
		to := min(from+pointSeconds, len(seconds))
		sum, n := 0.0, 0.0
		for i := from; i < to; i++ {
			sum += c.Bounds.Seconds[i] * float64(seconds[i].Arrived)
			n += float64(seconds[i].Arrived)
		}

		bound, rate := sum/max(n, 1), n/float64(to-from)
		d.add(s.Trace.Name, s.Zoo.Name, "lp-bound", from, "accuracy", bound, "")
		d.add(s.Trace.Name, s.Zoo.Name, "demand", from, "demand_rps", rate, "")
		at := float64(from) + pointSeconds/2.0
		accuracy.Add("lp-bound", at, bound)
		served.Add("demand", at, rate)
	}

	// Dash the lines of the bound and the demand, which are no policies.
	accuracy.Lines[len(accuracy.Lines)-1].Dashed = true
	served.Lines[len(served.Lines)-1].Dashed = true
}
