package joint

import (
	"fmt"
	"io"
	"text/tabwriter"

	"downbeat.dev/bench/chart"
)

// WriteTable prints rows for people.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "load\tpolicy\tgoodput r/s\tbad %\tworst %\taccuracy\tdrop 1s\tasked\tsessions\trefused\tfinish %\tdrift accuracy\tspare used\tGPUs learning\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%.2f\t%s\t%.0f\t%.3f\t%.2f\t%.4f\t%.4f\t%d\t%d\t%d\t%.2f\t%.4f\t%.3f\t%.2f\t\n", r.Load, r.Policy, r.GoodputRPS, r.BadPct, r.WorstBadPct,
			r.EffectiveAccuracy, r.LargestDrop, r.Asked, r.Sessions, r.Refused, r.FinishPct, r.DriftAccuracy, r.SpareUsed, r.LearningGPUs)
	}
	return t.Flush()
}

// Draw draws the papers' measures over the load.
func Draw(w io.Writer, rows []Row) error {
	panels := []struct {
		chart.Panel
		of func(Row) float64
	}{
		{chart.Panel{Title: "Symphony: goodput", YLabel: "requests/s in time"}, func(r Row) float64 { return r.GoodputRPS }},
		{chart.Panel{Title: "Proteus: bad requests", YLabel: "% of what was let in"}, func(r Row) float64 { return r.BadPct }},
		{chart.Panel{Title: "Proteus: accuracy of the answers", YLabel: "of the best", YMin: 0.92}, func(r Row) float64 { return r.EffectiveAccuracy }},
		{chart.Panel{Title: "Rim: sessions with 99 % of their frames", YLabel: "sessions"}, func(r Row) float64 { return float64(r.Sessions) }},
		{chart.Panel{Title: "Rim: frames in time", YLabel: "% of those let in"}, func(r Row) float64 { return r.FinishPct }},
		{chart.Panel{Title: "AdaInf: accuracy under drift", YLabel: "of vehicle and activity", YMin: 0.85}, func(r Row) float64 { return r.DriftAccuracy }},
	}

	var drawn []chart.Panel
	for _, p := range panels {
		p.XLabel, p.XMin = "load, of the peak", rows[0].Load
		for _, r := range rows {
			p.XMin = min(p.XMin, r.Load)
			// An accuracy of 0 was not measured.
			if y := p.of(r); y > 0 || p.YMin == 0 {
				p.Add(r.Policy, r.Load, y)
			}
		}

		// Without measurements the axis begins at 0.
		if p.YMax <= p.YMin {
			p.YMin = 0
		}
		drawn = append(drawn, p.Panel)
	}
	return chart.Draw(w, drawn)
}
