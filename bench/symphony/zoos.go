package symphony

import (
	"context"
	"fmt"
	"strings"

	"downbeat.dev/bench/chart"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
)

// The policies that the paper compares, ours first. clockwork-bare is Clockwork without its buffer of 5 ms.
const paperPolicies = "downbeat,symphony-printed,clockwork,clockwork-bare,nexus-1,nexus-8"

// bars draws every policy's goodput over the bound, for the settings of rows, at x = 1, 2, ….
func bars(title string, rows []goodput.Row) chart.Panel {
	p := chart.Panel{Title: title, XLabel: "setting, in the CSV's order", YLabel: "goodput over the bound", YMax: 1}
	at, last := 0.0, ""
	for _, r := range rows {
		// Rows of a setting are consecutive.
		if r.Setting != last {
			at, last = at+1, r.Setting
		}
		p.Add(r.Policy, at, r.Goodput/r.Bound)
	}
	return p
}

// drawZoos is figure 6: the scheduler alone.
func drawZoos(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := in.compareNamed(ctx, "fig6", paperPolicies)
	if err != nil {
		return nil, err
	}
	d := &figure.Drawing{Header: goodputHeader, Panels: []chart.Panel{bars("figure 6", rows)}}
	addGoodput(d, rows)

	for _, c := range []struct {
		setting, published string
		least              float64
	}{
		{"1080ti-all", "2× to 2.4×", 2}, {"a100-all", "2× to 2.4×", 2}, {"1080ti-gt2", "up to 3.5×", 3.5}, {"a100-gt2", "up to 5.7×", 5.7},
		{"1080ti-lt2", "up to +23 %", 1.23}, {"a100-lt2", "up to +10 %", 1.1},
	} {
		setting := "fig6-" + c.setting
		ours, printed := findRow(rows, setting, "downbeat"), findRow(rows, setting, "symphony-printed")
		most := 0.0
		var parts []string
		for _, rival := range []string{"clockwork", "nexus-1", "nexus-8"} {
			x := over(ours, findRow(rows, setting, rival))
			most = max(most, x)
			parts = append(parts, fmt.Sprintf("%.2f× %s (printed %.2f×)", x, rival, over(printed, findRow(rows, setting, rival))))
		}

		// The factor depends on Clockwork's buffer, so show Clockwork without it, too.
		bare := over(printed, findRow(rows, setting, "clockwork-bare"))
		d.Claims = append(d.Claims, figure.Claim{What: c.setting + ", over Clockwork and Nexus", Published: c.published, Ours: strings.Join(parts, ", "),
			Verdict: figure.Judge(most >= 0.97*c.least), Why: fmt.Sprintf("the printed policy has %.2f of a Clockwork without its buffer", bare)})
	}

	least, most := 1.0, 0.0
	for _, setting := range settingsOf(rows) {
		loss := 1 - over(findRow(rows, setting, "nexus-8"), findRow(rows, setting, "nexus-1"))
		least, most = min(least, loss), max(most, loss)
	}
	d.Claims = append(d.Claims, figure.Claim{What: "loss of Nexus with 8 frontends", Published: "11 % to 45 %", Ours: fmt.Sprintf("%.0f %% to %.0f %%", 100*least, 100*most),
		Verdict: figure.Judge(least >= 0.1 && most >= 0.4), Why: "where a GPU serves one model, a batch may exceed its planned size and so takes what uneven frontends have sent"})
	return d, nil
}

// settingsOf returns the settings of rows, in order.
func settingsOf(rows []goodput.Row) []string {
	var out []string
	for _, r := range rows {
		if len(out) == 0 || out[len(out)-1] != r.Setting {
			out = append(out, r.Setting)
		}
	}
	return out
}

// drawFactor is the factor of the abstract (4.7×) and of §5.1 (5.7×), from the settings of figure 6.
func drawFactor(ctx context.Context, in *Inputs) (*figure.Drawing, error) {
	rows, err := in.compareNamed(ctx, "fig6-a100", paperPolicies)
	if err != nil {
		return nil, err
	}

	d := &figure.Drawing{Header: []string{"setting", "rival", "ours_over", "printed_over"}}
	ours, printed := 0.0, 0.0
	for _, setting := range settingsOf(rows) {
		for _, rival := range []string{"clockwork", "clockwork-bare", "nexus-1", "nexus-8"} {
			x, y := over(findRow(rows, setting, "downbeat"), findRow(rows, setting, rival)), over(findRow(rows, setting, "symphony-printed"), findRow(rows, setting, rival))
			d.Add(setting, rival, x, y)
			ours, printed = max(ours, x), max(printed, y)
		}
	}

	d.Claims = []figure.Claim{{What: "the largest factor over another system", Published: "4.7× (abstract, §7), 5.7× (§5.1)",
		Ours: fmt.Sprintf("%.2f×; the printed policy %.2f×", ours, printed), Verdict: figure.Judge(printed > 4.7),
		Why: "the paper has two numbers for one comparison; both are against Clockwork with its buffer of 5 ms"}}
	return d, nil
}
