package goodput

import (
	"fmt"
	"io"
	"strings"
)

// drawGoodput shows every policy's goodput as a share of the setting's bound.
func drawGoodput(w io.Writer, rows []Row) error {
	const left, wide, top, high = 210, 900, 58, 19
	color := make(map[string]string)
	var policies, settings []string
	line := make(map[string]int)
	for _, r := range rows {
		if color[r.Policy] == "" {
			color[r.Policy] = shades[len(policies)%len(shades)]
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
	open(&b, wide, bottom+34)
	for i, p := range policies {
		at := 12 + i%6*147
		up := 18 + 18*(i/6)
		fmt.Fprintf(&b, `<circle cx="%d" cy="%d" r="4.5" fill="%s"/><text x="%d" y="%d">%s</text>`, at, up-4, color[p], at+9, up, escape(p))
	}
	for v := 0; v <= 10; v++ {
		fmt.Fprintf(&b, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#e4e4e4"/><text x="%.1f" y="%d" text-anchor="middle">%.1f</text>`,
			x(float64(v)/10), x(float64(v)/10), top, bottom, x(float64(v)/10), bottom+14, float64(v)/10)
	}
	fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">goodput as a share of what no schedule exceeds (diamond: published)</text>`, x(0.5), bottom+29)
	for _, s := range settings {
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text><line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#f0f0f0"/>`, left-8, y(s)+4, escape(s), left, wide-30, y(s), y(s))
	}
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
			x(r.Goodput/r.Bound), y(r.Setting), size, color[r.Policy], escape(r.Setting), escape(r.Policy), r.Goodput)
		if r.Published != nil {
			c, d := x(*r.Published/r.Bound), y(r.Setting)
			stroke := color[r.Policy]
			if r.Policy == policies[0] {
				stroke = "#222"
			}
			fmt.Fprintf(&b, `<path d="M%.1f %.1f l5 -5 l5 5 l-5 5 z" fill="none" stroke="%s" stroke-width="1.5"/>`, c-5, d, stroke)
		}
	}
	return finish(w, &b)
}

// bySetting makes one panel per setting that has a line in it.
func bySetting(rows []Row, base panel, curve func(Row) (line, bool)) []panel {
	var out []panel
	at := make(map[string]int)
	for _, r := range rows {
		l, ok := curve(r)
		if !ok {
			continue
		}
		l.name = r.Policy
		k, seen := at[r.Setting]
		if !seen {
			k = len(out)
			at[r.Setting] = k
			p := base
			p.title = r.Setting + ": " + base.title
			out = append(out, p)
		}
		out[k].lines = append(out[k].lines, l)
		for _, v := range l.x {
			out[k].xMax = max(out[k].xMax, v)
		}
	}
	return out
}

// drawSizes is figure 8: the share of requests in batches of at most a size.
func drawSizes(w io.Writer, rows []Row) error {
	return draw(w, bySetting(rows, panel{title: "batch size", xLabel: "batch size", yLabel: "share of requests up to it", yMax: 1},
		func(r Row) (line, bool) {
			l, sum := line{}, 0.0
			for b, s := range r.shares() {
				sum += s
				l.x, l.y = append(l.x, float64(b)), append(l.y, sum)
			}
			return l, r.delays != nil
		}))
}

// drawDelays is figure 9: queueing delays.
func drawDelays(w io.Writer, rows []Row) error {
	return draw(w, bySetting(rows, panel{title: "queueing delay", xLabel: "ms from arrival to start", yLabel: "share of served requests", yMax: 1},
		func(r Row) (line, bool) {
			l := line{x: r.delays}
			for q := range r.delays {
				l.y = append(l.y, float64(q)/100)
			}
			return l, r.delays != nil
		}))
}

// drawSweep is figure 10: goodput beyond the highest load, and busy GPUs below it.
func drawSweep(w io.Writer, rows []Row) error {
	var out []panel
	for _, r := range rows {
		if len(r.Points) == 0 || r.Goodput <= 0 {
			continue
		}
		over := r.FlatTop != nil
		p := panel{title: r.Setting, xLabel: "offered load over the policy's goodput", yLabel: "busy share of the GPUs", xMax: 1, yMax: 1}
		ideal := line{name: "ideal", x: []float64{0, 1}, y: []float64{0, 1}, dashed: true}
		if over {
			p.yLabel, p.xMax, p.yMax = "goodput over its best", 2, 1.1
			ideal.x, ideal.y = []float64{0, 1, 2}, []float64{0, 1, 1}
		}
		k := len(out) - 1
		if k < 0 || out[k].title != p.title {
			p.lines = append(p.lines, ideal)
			out = append(out, p)
			k++
		}
		l := line{name: r.Policy}
		for _, pt := range r.Points {
			v := pt.Busy
			if over {
				v = pt.Good / r.Goodput
			}
			l.x, l.y = append(l.x, pt.Load), append(l.y, v)
		}
		out[k].lines = append(out[k].lines, l)
	}
	return draw(w, out)
}

// drawGPUs is figure 11 (right): goodput over the number of GPUs.
func drawGPUs(w io.Writer, rows []Row) error {
	p := panel{title: "goodput over GPUs", xLabel: "GPUs", yLabel: "goodput, r/s"}
	at := make(map[string]int)
	for _, r := range rows {
		var gpus float64
		if n, _ := fmt.Sscanf(r.Setting, "fig11-gpus-%g", &gpus); n == 1 {
			p.add(at, r.Policy, gpus, r.Goodput)
		}
	}
	return draw(w, []panel{p})
}

// drawNetwork is figure 13: what network latency costs, one panel per policy.
func drawNetwork(w io.Writer, rows []Row) error {
	var out []panel
	var lines map[string]int
	base := make(map[string]float64)
	for _, r := range rows {
		var slo int
		var us float64
		if n, _ := fmt.Sscanf(r.Setting, "fig13-%dms-%gus", &slo, &us); n != 2 {
			continue
		}
		key := fmt.Sprint(r.Policy, slo)
		if us == 0 {
			base[key] = r.Goodput
		}
		if base[key] == 0 {
			continue
		}
		k := 0
		for k < len(out) && out[k].title != r.Policy {
			k++
		}
		if k == len(out) {
			out = append(out, panel{title: r.Policy, xLabel: "network latency, ms", yLabel: "goodput over that at 0", yMax: 1.05})
		}
		lines = make(map[string]int)
		for i, l := range out[k].lines {
			lines[l.name] = i
		}
		out[k].add(lines, fmt.Sprintf("SLO %d ms", slo), us/1000, r.Goodput/base[key])
	}
	return draw(w, out)
}

// add puts a point on the line of a name; at maps names to lines.
func (p *panel) add(at map[string]int, name string, x, y float64) {
	k, ok := at[name]
	if !ok {
		k = len(p.lines)
		at[name] = k
		p.lines = append(p.lines, line{name: name})
	}
	p.lines[k].x, p.lines[k].y = append(p.lines[k].x, x), append(p.lines[k].y, y)
	p.xMax, p.yMax = max(p.xMax, x), max(p.yMax, y)
}
