package app

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"downbeat.dev/core/plan"
)

const (
	boxWide, boxHigh = 190, 84
	gapWide, gapHigh = 90, 26
	marginWide       = 20
	headHigh         = 46
)

// Draw writes the graph as SVG: a box for each stage with its model, budget, batch and cost, and an arrow for each
// dependency. Empty budgets leave the numbers out. rate is the rate of the budgets, in frames/s.
func (g *Graph) Draw(w io.Writer, budgets plan.StageBudgets, rate float64) error {
	column, row, columns, rows := g.arrange()

	wide := 2*marginWide + columns*boxWide + (columns-1)*gapWide
	high := headHigh + rows*boxHigh + (rows-1)*gapHigh + marginWide

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`, wide, high, wide, high)
	b.WriteString(`<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>`)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>`)

	title := fmt.Sprintf("%s: %v", g.Name, g.Latency)
	if len(budgets.Budget) > 0 {
		title += fmt.Sprintf(", %.3g GPUs for %.3g frames/s", budgets.Total, rate)
	}
	fmt.Fprintf(&b, `<text x="%d" y="26" font-size="15" font-weight="bold">%s</text>`, marginWide, escape(title))

	// Draw the arrows first, so that boxes cover their ends.
	place := func(j int) (x, y int) {
		return marginWide + column[j]*(boxWide+gapWide), headHigh + row[j]*(boxHigh+gapHigh)
	}
	for j := range g.Steps {
		x, y := place(j)
		for _, before := range g.Steps[j].After {
			fromX, fromY := place(int(before))
			fmt.Fprintf(&b, `<path d="M%d %dC%d %d %d %d %d %d" fill="none" stroke="#555" marker-end="url(#tip)"/>`, fromX+boxWide, fromY+boxHigh/2,
				fromX+boxWide+gapWide/2, fromY+boxHigh/2, x-gapWide/2, y+boxHigh/2, x-1, y+boxHigh/2)
		}
	}

	for j := range g.Steps {
		x, y := place(j)
		g.drawStep(&b, j, x, y, budgets)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// arrange puts each step in a column to the right of the steps that it needs.
func (g *Graph) arrange() (column, row []int, columns, rows int) {
	column, row = make([]int, len(g.Steps)), make([]int, len(g.Steps))
	filled := make([]int, len(g.Steps))
	for j := range g.Steps {
		// A step follows the steps that it needs, so their columns are known.
		for _, before := range g.Steps[j].After {
			column[j] = max(column[j], column[before]+1)
		}
		row[j] = filled[column[j]]
		filled[column[j]]++
		columns, rows = max(columns, column[j]+1), max(rows, row[j]+1)
	}
	return column, row, columns, rows
}

// drawStep draws one box with up to four lines of text.
func (g *Graph) drawStep(b *strings.Builder, j, x, y int, budgets plan.StageBudgets) {
	s := &g.Steps[j]
	fill, border := "#e8f1f9", "#0b5fa5"
	what := s.Model
	if s.Model == "" {
		fill, border, what = "#f4efe4", "#8c6d46", "hook "+s.Hook
	}

	dash := ""
	if s.Optional {
		dash = ` stroke-dasharray="5,4"`
	}
	fmt.Fprintf(b, `<rect x="%d" y="%d" width="%d" height="%d" rx="5" fill="%s" stroke="%s"%s/>`, x, y, boxWide, boxHigh, fill, border, dash)

	lines := []string{what}
	if s.List != Single {
		list := &g.Tensors[s.List]
		lines = append(lines, fmt.Sprintf("each of %s: %.3g, at most %d", list.Name, list.Mean, list.Most))
	}
	switch {
	case len(budgets.Budget) > 0 && s.Model != "":
		lines = append(lines, fmt.Sprintf("%s, batch %d: %.3g GPUs", rounded(budgets.Budget[j]), budgets.Batch[j], budgets.Cost[j]))
	case s.Fixed > 0:
		lines = append(lines, rounded(s.Fixed)+" on a processor")
	}

	fmt.Fprintf(b, `<text x="%d" y="%d" font-weight="bold">%s</text>`, x+10, y+19, escape(s.Name))
	for i, line := range lines {
		fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`, x+10, y+38+17*i, escape(line))
	}
}

// rounded formats a time with three digits.
func rounded(d time.Duration) string { return fmt.Sprintf("%.3g ms", d.Seconds()*1e3) }

// escape shortens text and escapes it for XML.
func escape(s string) string {
	if len(s) > 200 {
		s = s[:200]
	}

	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder cannot fail
	return b.String()
}
