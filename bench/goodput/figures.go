package goodput

import (
	"fmt"
	"io"
	"strings"

	"downbeat.dev/bench/chart"
)

// drawGoodput draws every policy's goodput as a share of the setting's bound.
func drawGoodput(w io.Writer, rows []Row) error {
	const left, wide, top, high = 210, 900, 58, 19
	color := make(map[string]string)
	var policies, settings []string
	line := make(map[string]int)

	for _, r := range rows {
		if color[r.Policy] == "" {
			color[r.Policy] = chart.Shades[len(policies)%len(chart.Shades)]
			policies = append(policies, r.Policy)
		}
		if _, ok := line[r.Setting]; !ok {
			line[r.Setting] = len(settings)
			settings = append(settings, r.Setting)
		}
	}

	x := func(share float64) float64 { return left + (wide-left-30)*share }
	y := func(setting string) float64 { return float64(top + high*line[setting] + 14) }
	bottom := top + high*len(settings) + 8

	var b strings.Builder
	chart.Open(&b, wide, bottom+34)
	for i, p := range policies {
		at := 12 + i%6*147
		up := 18 + 18*(i/6)
		fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="4.5" fill="%s"/><text x="%d" y="%d">%s</text>`, at, up-4, color[p], at+9, up, chart.Escape(p))
	}

	for v := 0; v <= 10; v++ {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#e4e4e4"/><text x="%.1f" y="%d" text-anchor="middle">%.1f</text>`,
			x(float64(v)/10), x(float64(v)/10), top, bottom, x(float64(v)/10), bottom+14, float64(v)/10)
	}
	fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">goodput as a share of what no schedule exceeds (diamond: published)</text>`, x(0.5), bottom+29)

	for _, s := range settings {
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text><line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#f0f0f0"/>`, left-8, y(s)+4, chart.Escape(s), left, wide-30, y(s), y(s))
	}

	// Draw ours last, above the others.
	for i := range rows {
		r := rows[len(rows)-1-i]
		if r.Bound <= 0 {
			continue
		}
		size := 4.0
		if r.Policy == policies[0] {
			size = 5.5
		}
		fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s" fill-opacity="0.85"><title>%s %s: %.0f r/s</title></circle>`,
			x(r.Goodput/r.Bound), y(r.Setting), size, color[r.Policy], chart.Escape(r.Setting), chart.Escape(r.Policy), r.Goodput)

		if r.Published != nil {
			c, d := x(*r.Published/r.Bound), y(r.Setting)
			stroke := color[r.Policy]
			if r.Policy == policies[0] {
				stroke = "#222"
			}
			fmt.Fprintf(&b, `<path d="M%.1f %.1f l5 -5 l5 5 l-5 5 z" fill="none" stroke="%s" stroke-width="1.5"/>`, c-5, d, stroke)
		}
	}
	return chart.Finish(w, &b)
}

// bySetting makes one panel per setting with a line in it.
func bySetting(rows []Row, base chart.Panel, curve func(Row) (chart.Line, bool)) []chart.Panel {
	var out []chart.Panel
	at := make(map[string]int)
	for _, r := range rows {
		l, ok := curve(r)
		if !ok {
			continue
		}
		l.Name = r.Policy

		k, seen := at[r.Setting]
		if !seen {
			k = len(out)
			at[r.Setting] = k
			p := base
			p.Title = r.Setting + ": " + base.Title
			out = append(out, p)
		}

		// All lines of a panel share its axis.
		out[k].Lines = append(out[k].Lines, l)
		for _, v := range l.X {
			out[k].XMax = max(out[k].XMax, v)
		}
	}
	return out
}

// drawSizes is figure 8: the share of requests in batches of at most a size.
func drawSizes(w io.Writer, rows []Row) error {
	return chart.Draw(w, bySetting(rows, chart.Panel{Title: "batch size", XLabel: "batch size", YLabel: "share of requests up to it", YMax: 1},
		func(r Row) (chart.Line, bool) {
			l, sum := chart.Line{}, 0.0
			for b, s := range r.BatchShares() {
				sum += s
				l.X, l.Y = append(l.X, float64(b)), append(l.Y, sum)
			}
			return l, r.delays != nil
		}))
}

// drawDelays is figure 9: queueing delays.
func drawDelays(w io.Writer, rows []Row) error {
	return chart.Draw(w, bySetting(rows, chart.Panel{Title: "queueing delay", XLabel: "ms from arrival to start", YLabel: "share of served requests", YMax: 1},
		func(r Row) (chart.Line, bool) {
			l := chart.Line{X: r.delays}
			for q := range r.delays {
				l.Y = append(l.Y, float64(q)/100)
			}
			return l, r.delays != nil
		}))
}

// drawSweep is figure 10: goodput beyond the highest load, and busy GPUs below it.
func drawSweep(w io.Writer, rows []Row) error {
	var out []chart.Panel
	for _, r := range rows {
		if len(r.Points) == 0 || r.Goodput <= 0 {
			continue
		}

		over := r.FlatTop != nil
		p := chart.Panel{Title: r.Setting, XLabel: "offered load over the policy's goodput", YLabel: "busy share of the GPUs", XMax: 1, YMax: 1}
		ideal := chart.Line{Name: "ideal", X: []float64{0, 1}, Y: []float64{0, 1}, Dashed: true}
		if over {
			p.YLabel, p.XMax, p.YMax = "goodput over its best", 2, 1.1
			ideal.X, ideal.Y = []float64{0, 1, 2}, []float64{0, 1, 1}
		}

		// Rows of a setting are consecutive, so only the last panel can be theirs.
		k := len(out) - 1
		if k < 0 || out[k].Title != p.Title {
			p.Lines = append(p.Lines, ideal)
			out = append(out, p)
			k++
		}

		l := chart.Line{Name: r.Policy}
		for _, pt := range r.Points {
			v := pt.Busy
			if over {
				v = pt.Good / r.Goodput
			}
			l.X, l.Y = append(l.X, pt.Load), append(l.Y, v)
		}
		out[k].Lines = append(out[k].Lines, l)
	}
	return chart.Draw(w, out)
}

// drawGPUs is figure 11 (right): goodput over the number of GPUs.
func drawGPUs(w io.Writer, rows []Row) error {
	p := chart.Panel{Title: "goodput over GPUs", XLabel: "GPUs", YLabel: "goodput, r/s"}
	for _, r := range rows {
		var gpus float64
		if n, _ := fmt.Sscanf(r.Setting, "fig11-gpus-%g", &gpus); n == 1 {
			p.Add(r.Policy, gpus, r.Goodput)
		}
	}
	return chart.Draw(w, []chart.Panel{p})
}

// drawNetwork is figure 13: the cost of network latency, one panel per policy.
func drawNetwork(w io.Writer, rows []Row) error {
	var out []chart.Panel
	base := make(map[string]float64)
	for _, r := range rows {
		var slo int
		var us float64
		if n, _ := fmt.Sscanf(r.Setting, "fig13-%dms-%gus", &slo, &us); n != 2 {
			continue
		}

		// Rows are sorted by latency within a policy and an SLO, so the one at 0 comes first.
		key := fmt.Sprint(r.Policy, slo)
		if us == 0 {
			base[key] = r.Goodput
		}
		if base[key] == 0 {
			continue
		}

		k := 0
		for k < len(out) && out[k].Title != r.Policy {
			k++
		}
		if k == len(out) {
			out = append(out, chart.Panel{Title: r.Policy, XLabel: "network latency, ms", YLabel: "goodput over that at 0", YMax: 1.05})
		}
		out[k].Add(fmt.Sprintf("SLO %d ms", slo), us/1000, r.Goodput/base[key])
	}
	return chart.Draw(w, out)
}
