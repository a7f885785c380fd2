package accuracy

import (
	"context"
	"math"
	"strings"

	"downbeat.dev/bench/chart"
)

// drawFamilies is figure 9: accuracy and violations by family, and the variation of a family's accuracy over time.
func drawFamilies(ctx context.Context, in *Inputs) (*Drawing, error) {
	d := &Drawing{Header: []string{"trace", "data", "policy", "family", "requests", "throughput_rps", "effective_accuracy", "deviation_over_time", "violation_ratio", "published"}}
	for _, s := range in.Settings {
		if strings.Contains(s.Trace.Name, "bursty") {
			continue
		}

		c, err := in.compareSetting(ctx, s, "downbeat,proteus")
		if err != nil {
			return nil, err
		}

		for _, r := range c.Results {
			p := chart.Panel{Title: s.Trace.Name + ", " + s.Zoo.Name + ": " + r.Policy, XLabel: "s", YLabel: "effective accuracy", XMax: s.Trace.Span().Seconds(), YMin: 0.9, YMax: 1}
			for f, name := range s.Trace.Families {
				w := r.Measured.Families[f]
				points := tenSecondAccuracy(r.Measured.BySecond[f])

				// Ten seconds without served requests have no accuracy and leave a gap in the line.
				for i, a := range points {
					if !math.IsNaN(a) {
						p.Add(name, float64(10*i+5), a)
					}
				}

				d.add(r.Trace, r.Data, r.Policy, name, w.Arrived, float64(w.Served)/s.Trace.Span().Seconds(), 1-w.Drop(), deviation(points), w.Violations(), publishedVariation[name])
			}
			d.Panels = append(d.Panels, p)
		}
	}
	return d, nil
}

// publishedVariation is the statement of §6.7 about two families.
var publishedVariation = map[string]string{"t5": "varies most", "gpt2": "varies least"}

// tenSecondAccuracy returns the accuracy of windows of ten seconds; NaN if nothing was served.
func tenSecondAccuracy(seconds []Window) []float64 {
	var out []float64
	for from := 0; from < len(seconds); from += 10 {
		var w Window
		for _, x := range seconds[from:min(from+10, len(seconds))] {
			w.add(x)
		}

		a := 1 - w.Drop()
		if w.Served == 0 {
			a = math.NaN()
		}
		out = append(out, a)
	}
	return out
}

// deviation returns the standard deviation of points without its NaNs.
func deviation(points []float64) float64 {
	sum, squares, n := 0.0, 0.0, 0.0
	for _, x := range points {
		if !math.IsNaN(x) {
			sum, squares, n = sum+x, squares+x*x, n+1
		}
	}
	if n == 0 {
		return 0
	}

	// Rounding may make the difference slightly negative.
	return math.Sqrt(max(0, squares/n-sum/n*sum/n))
}
