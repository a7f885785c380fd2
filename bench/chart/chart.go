// Package chart draws panels of curves as SVG, for the figures of the benchmarks.
package chart

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Line is one curve of a panel.
type Line struct {
	Name   string
	X, Y   []float64
	Dashed bool
	Dots   bool // points without lines
}

// Panel is one chart; all panels of a drawing share a legend. Points outside its ranges are drawn at the border.
type Panel struct {
	Title, XLabel, YLabel string
	XMin, XMax            float64
	YMin, YMax            float64
	Lines                 []Line
}

// Add adds a point to the line with a name, which it creates if necessary, and widens the ranges.
func (p *Panel) Add(name string, x, y float64) {
	k := slices.IndexFunc(p.Lines, func(l Line) bool { return l.Name == name })
	if k < 0 {
		k = len(p.Lines)
		p.Lines = append(p.Lines, Line{Name: name})
	}

	l := &p.Lines[k]
	l.X, l.Y = append(l.X, x), append(l.Y, y)
	p.XMax, p.YMax = max(p.XMax, x), max(p.YMax, y)
}

// Shades are colours that differ in print; the first is Downbeat's.
var Shades = []string{"#0b5fa5", "#d1495b", "#e39a2d", "#8a5a9e", "#2a9d6f", "#7fc8a9", "#8c6d46", "#5c6770", "#a9b4bd", "#c94f9b", "#5fa8d3", "#222222", "#b7410e"}

const (
	panelWide, panelHigh = 430, 300
	panelLeft, panelTop  = 58, 34
	panelBottom          = 46
	legendWide           = 165
)

// Draw writes panels in rows of two with one legend below.
func Draw(w io.Writer, panels []Panel) error {
	// A name has one colour in all panels; the ideal line is grey and uses none of the shades.
	color := map[string]string{"ideal": "#888888"}
	var names []string
	for _, p := range panels {
		for _, l := range p.Lines {
			if color[l.Name] == "" {
				color[l.Name] = Shades[len(names)%len(Shades)]
				names = append(names, l.Name)
			}
		}
	}

	// The ideal appears in the legend where the first panel has it.
	names = append(names, "ideal")
	if len(panels) == 0 || len(panels[0].Lines) == 0 || panels[0].Lines[0].Name != "ideal" {
		names = names[:len(names)-1]
	}

	rows := (len(panels) + 1) / 2
	wide := panelWide * min(2, max(1, len(panels)))
	perRow := max(1, (wide-20)/legendWide)
	high := rows*panelHigh + 20*((len(names)+perRow-1)/perRow) + 16

	var b strings.Builder
	Open(&b, wide, high)
	for i, p := range panels {
		p.drawPanel(&b, float64(i%2*panelWide), float64(i/2*panelHigh), color)
	}

	for i, n := range names {
		x, y := 20+i%perRow*legendWide, rows*panelHigh+14+20*(i/perRow)
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="3"/><text x="%d" y="%d">%s</text>`, x, x+18, y, y, color[n], x+24, y+4, Escape(n))
	}
	return Finish(w, &b)
}

// frame maps a panel's values to coordinates of the drawing.
type frame struct {
	*Panel
	left, right, top, bottom float64
}

func (f frame) x(v float64) float64 {
	v = min(max(v, f.XMin), f.XMax)
	return f.left + (f.right-f.left)*(v-f.XMin)/(f.XMax-f.XMin)
}

func (f frame) y(v float64) float64 {
	v = min(max(v, f.YMin), f.YMax)
	return f.bottom - (f.bottom-f.top)*(v-f.YMin)/(f.YMax-f.YMin)
}

// drawPanel draws a panel whose upper left corner is at (ox, oy).
func (p Panel) drawPanel(b *strings.Builder, ox, oy float64, color map[string]string) {
	// An empty range has no scale and no end of grid lines.
	if p.XMax <= p.XMin {
		p.XMax = p.XMin + 1
	}
	if p.YMax <= p.YMin {
		p.YMax = p.YMin + 1
	}

	f := frame{&p, ox + panelLeft, ox + panelWide - 16, oy + panelTop, oy + panelHigh - panelBottom}

	fmt.Fprintf(b, `<text x="%.0f" y="%.0f" font-weight="bold">%s</text>`, f.left, oy+18, Escape(p.Title))
	f.drawAxes(b, ox)

	for i := range p.Lines {
		l := p.Lines[len(p.Lines)-1-i] // the first on top
		f.drawLine(b, l, color[l.Name])
	}
}

// drawAxes draws grid, numbers and labels.
func (f frame) drawAxes(b *strings.Builder, ox float64) {
	// The slack lets a grid line at the end of the range be drawn in spite of rounding errors.
	slack := 0.0001 * (f.YMax - f.YMin)
	for d, v := gridStep(f.YMax-f.YMin), 0.0; ; v += d {
		at := math.Ceil(f.YMin/d-1e-9)*d + v
		if at > f.YMax+slack {
			break
		}
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#e4e4e4"/><text x="%.1f" y="%.1f" text-anchor="end">%s</text>`, f.left, f.right, f.y(at), f.y(at), f.left-6, f.y(at)+4, shortNumber(at))
	}

	for d, v := gridStep(f.XMax-f.XMin), 0.0; ; v += d {
		at := math.Ceil(f.XMin/d-1e-9)*d + v
		if at > f.XMax+0.0001*(f.XMax-f.XMin) {
			break
		}
		fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#999"/><text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, f.x(at), f.x(at), f.bottom, f.bottom+4, f.x(at), f.bottom+17, shortNumber(at))
	}

	fmt.Fprintf(b, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#999"/>`, f.left, f.right, f.bottom, f.bottom)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, (f.left+f.right)/2, f.bottom+34, Escape(f.XLabel))
	fmt.Fprintf(b, `<text transform="translate(%.1f,%.1f) rotate(-90)" text-anchor="middle">%s</text>`, ox+14, (f.bottom+f.top)/2, Escape(f.YLabel))
}

// drawLine draws one curve, or its points.
func (f frame) drawLine(b *strings.Builder, l Line, color string) {
	if l.Dots {
		var at strings.Builder
		for k := range l.X {
			fmt.Fprintf(&at, "M%.1f %.1fh0", f.x(l.X[k]), f.y(l.Y[k]))
		}
		fmt.Fprintf(b, `<path d="%s" stroke="%s" stroke-width="3" stroke-linecap="round" stroke-opacity="0.6"/>`, at.String(), color)
		return
	}

	var at []string
	for k := range l.X {
		at = append(at, fmt.Sprintf("%.1f,%.1f", f.x(l.X[k]), f.y(l.Y[k])))
	}

	dash := ""
	if l.Dashed {
		dash = ` stroke-dasharray="5,4"`
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"%s/>`, strings.Join(at, " "), color, dash)
}

// gridStep returns a round distance for about five grid lines.
func gridStep(most float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, k := range []float64{1, 2, 2.5, 5} {
		if most/(unit*k) <= 6 {
			return unit * k
		}
	}
	return unit * 10
}

// shortNumber formats a number of an axis.
func shortNumber(v float64) string {
	if v >= 10000 {
		return fmt.Sprintf("%gk", math.Round(v/100)/10)
	}
	return fmt.Sprintf("%g", math.Round(v*1000)/1000)
}

// Open begins a drawing.
func Open(b *strings.Builder, wide, high int) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`, wide, high, wide, high)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>`)
}

// Finish ends a drawing and writes it.
func Finish(w io.Writer, b *strings.Builder) error {
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// Escape escapes text for a drawing.
func Escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}
