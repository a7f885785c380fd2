package sizing

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"downbeat.dev/bench/chart"
)

// WriteTable prints answers for people, with the accuracy of families.
func WriteTable(w io.Writer, answers []Answer, families bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "kind\tGPUs\tworst bad %\tall bad %\tbusy %\tmean batch\tdemand\teach alone\t")
	if families {
		fmt.Fprint(t, "accuracy\tleast accurate\t")
	}
	fmt.Fprintln(t, "per hour\t")

	for _, a := range answers {
		if a.Why != "" {
			fmt.Fprintf(t, "%s\t–\t%s\n", a.Kind, a.Why)
			continue
		}

		alone := "–"
		if a.Planned > 0 {
			alone = fmt.Sprint(a.Planned)
		}
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%s\t", a.Kind, a.GPUs, 100*a.Bad, 100*a.BadAll, 100*a.Busy, a.Batch, a.Demand, alone)
		if families {
			fmt.Fprintf(t, "%.4f\t%.4f\t", a.Accuracy, a.Least)
		}

		cost := "–"
		if a.Price > 0 {
			cost = fmt.Sprintf("%.2f", a.Cost())
		}
		fmt.Fprintf(t, "%s\t\n", cost)
	}
	return t.Flush()
}

// line is the JSON form of an answer.
type line struct {
	Kind     string   `json:"kind"`
	GPUs     int      `json:"gpus"` // 0: no number is enough
	BadPct   float64  `json:"bad_pct"`
	BadAll   float64  `json:"bad_pct_all"`
	Accuracy float64  `json:"accuracy"`
	Least    float64  `json:"accuracy_least"`
	Busy     float64  `json:"busy"`
	Batch    float64  `json:"batch_mean"`
	Demand   float64  `json:"demand_gpus"`
	Planned  int      `json:"gpus_alone"`
	Cost     *float64 `json:"cost_per_hour"`
	Why      string   `json:"why,omitempty"`
}

// WriteJSON prints one object per line and kind.
func WriteJSON(w io.Writer, answers []Answer) error {
	e := json.NewEncoder(w)
	for _, a := range answers {
		l := line{a.Kind, a.GPUs, 100 * a.Bad, 100 * a.BadAll, a.Accuracy, a.Least, a.Busy, a.Batch, a.Demand, a.Planned, nil, a.Why}
		if cost := a.Cost(); a.Price > 0 && a.Why == "" {
			l.Cost = &cost
		}
		if err := e.Encode(l); err != nil {
			return err
		}
	}
	return nil
}

// Draw draws, for every kind, the results of more and fewer GPUs: the worst service's bad share, and the accuracy if
// services have variants.
func Draw(w io.Writer, answers []Answer, o Options, families bool) error {
	const badShown = 0.1
	bad := chart.Panel{Title: "bad requests of the worst model", XLabel: "GPUs", YLabel: "share, up to 0.1", YMax: badShown}
	accuracy := chart.Panel{Title: "accuracy of the answers", XLabel: "GPUs", YLabel: "mean", YMin: 0.5, YMax: 1}
	busy := chart.Panel{Title: "busy GPUs", XLabel: "GPUs", YLabel: "share of their time", YMax: 1}

	least, most := 0.0, 0.0
	for _, a := range answers {
		for _, p := range a.Points {
			x := float64(p.GPUs)
			if least == 0 || x < least {
				least = x
			}
			most = max(most, x)
			bad.Add(a.Kind, x, min(badShown, p.Bad))
			accuracy.Add(a.Kind, x, p.Accuracy)
			busy.Add(a.Kind, x, min(1, p.Busy))
		}
	}
	if most == 0 {
		return fmt.Errorf("nothing to draw: no kind of GPU can run every model")
	}

	panels := []chart.Panel{bad, busy}
	if families {
		panels = append(panels, accuracy)
	}

	// A range of no width cannot be drawn.
	for i := range panels {
		panels[i].XMin = min(least, most-1)
	}
	panels[0].Lines = append([]chart.Line{{Name: "allowed", X: []float64{least, most}, Y: []float64{o.BadMax, o.BadMax}, Dashed: true}}, panels[0].Lines...)
	return chart.Draw(w, panels)
}
