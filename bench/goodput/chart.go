package goodput

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// line is one curve of a panel.
type line struct {
	name   string
	x, y   []float64
	dashed bool
}

// panel is one chart; all panels of a drawing share a legend.
type panel struct {
	title, xLabel, yLabel string
	xMax, yMax            float64
	lines                 []line
}

// shades are colours that differ in print; the first is for Downbeat.
var shades = []string{"#0b5fa5", "#d1495b", "#e39a2d", "#8a5a9e", "#2a9d6f", "#7fc8a9", "#8c6d46", "#5c6770", "#a9b4bd", "#c94f9b", "#5fa8d3", "#222222", "#b7410e"}

const (
	panelWide, panelHigh = 430, 300
	panelLeft, panelTop  = 58, 34
	panelBottom          = 46
	legendWide           = 165
)

// draw writes panels in rows of two with one legend below.
func draw(w io.Writer, panels []panel) error {
	color := map[string]string{"ideal": "#888888"}
	var names []string
	for _, p := range panels {
		for _, l := range p.lines {
			if color[l.name] == "" {
				color[l.name] = shades[len(names)%len(shades)]
				names = append(names, l.name)
			}
		}
	}
	names = append(names, "ideal")
	if len(panels) == 0 || len(panels[0].lines) == 0 || panels[0].lines[0].name != "ideal" {
		names = names[:len(names)-1]
	}
	rows := (len(panels) + 1) / 2
	wide := panelWide * min(2, max(1, len(panels)))
	perRow := max(1, (wide-20)/legendWide)
	high := rows*panelHigh + 20*((len(names)+perRow-1)/perRow) + 16
	var b strings.Builder
	open(&b, wide, high)
	for i, p := range panels {
		p.draw(&b, float64(i%2*panelWide), float64(i/2*panelHigh), color)
	}
	for i, n := range names {
		x, y := 20+i%perRow*legendWide, rows*panelHigh+14+20*(i/perRow)
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="3"/><text x="%d" y="%d">%s</text>`, x, x+18, y, y, color[n], x+24, y+4, escape(n))
	}
	return finish(w, &b)
}

func (p panel) draw(b *strings.Builder, ox, oy float64, color map[string]string) {
	right, bottom := ox+panelWide-16, oy+panelHigh-panelBottom
	x := func(v float64) float64 { return ox + panelLeft + (right-ox-panelLeft)*v/p.xMax }
	y := func(v float64) float64 { return bottom - (bottom-oy-panelTop)*v/p.yMax }
	fmt.Fprintf(b, `<text x="%.0f" y="%.0f" font-weight="bold">%s</text>`, ox+panelLeft, oy+18, escape(p.title))
	for v := 0.0; v <= p.yMax*1.0001; v += step(p.yMax) {
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#e4e4e4"/><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`, x(0), right, y(v), y(v), x(0)-6, y(v)+4, short(v))
	}
	for v := 0.0; v <= p.xMax*1.0001; v += step(p.xMax) {
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#999"/><text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, x(v), x(v), bottom, bottom+4, x(v), bottom+17, short(v))
	}
	fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#999"/>`, x(0), right, bottom, bottom)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, (x(0)+right)/2, bottom+34, escape(p.xLabel))
	fmt.Fprintf(b, `<text transform="translate(%.1f,%.1f) rotate(-90)" text-anchor="middle">%s</text>`, ox+14, (bottom+oy+panelTop)/2, escape(p.yLabel))
	for i := range p.lines {
		l := p.lines[len(p.lines)-1-i] // the first on top
		var at []string
		for k := range l.x {
			at = append(at, fmt.Sprintf("%.1f,%.1f", x(l.x[k]), y(min(l.y[k], p.yMax))))
		}
		dash := ""
		if l.dashed {
			dash = ` stroke-dasharray="5,4"`
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, strings.Join(at, " "), color[l.name], dash)
	}
}

// step is a round distance between about five grid lines.
func step(most float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, k := range []float64{1, 2, 2.5, 5} {
		if most/(unit*k) <= 6 {
			return unit * k
		}
	}
	return unit * 10
}

// short prints a number of an axis.
func short(v float64) string {
	if v >= 10000 {
		return fmt.Sprintf("%gk", math.Round(v/100)/10)
	}
	return fmt.Sprintf("%g", math.Round(v*1000)/1000)
}

func open(b *strings.Builder, wide, high int) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`, wide, high, wide, high)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>`)
}

func finish(w io.Writer, b *strings.Builder) error {
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}
