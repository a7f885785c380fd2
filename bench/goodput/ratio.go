package goodput

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"downbeat.dev/bench/chart"
)

// comparison compares one setting's first policy with the best of the others.
type comparison struct {
	setting, best     string
	ours, rival, sure float64 // r/s; sure is the bound that no schedule exceeds
}

// bestRatio returns our goodput over the best rival's; 1 if no policy meets the SLOs at any load.
func (c comparison) bestRatio() float64 {
	if c.rival == 0 {
		return 1
	}
	return c.ours / c.rival
}

// compareBest returns a comparison per setting, the worst first.
func compareBest(rows []Row) []comparison {
	var out []comparison
	for _, r := range rows {
		// Rows of a setting are consecutive, ours first; every later row is a rival.
		k := slices.IndexFunc(out, func(c comparison) bool { return c.setting == r.Setting })
		switch {
		case k < 0:
			out = append(out, comparison{setting: r.Setting, ours: r.Goodput, sure: r.Bound})
		case out[k].best == "" || r.Goodput > out[k].rival:
			out[k].best, out[k].rival = r.Policy, r.Goodput
		}
	}

	slices.SortStableFunc(out, func(a, b comparison) int { return cmp.Compare(a.bestRatio(), b.bestRatio()) })
	return out
}

// writeRatios prints each setting of a grid with the best rival, the worst ratio first.
func writeRatios(w io.Writer, rows []Row) error {
	var b strings.Builder
	b.WriteString("setting,ours_rps,best_rival,rival_rps,ratio,bound_rps\n")
	for _, c := range compareBest(rows) {
		fmt.Fprintf(&b, "%s,%.1f,%s,%.1f,%.4f,%.1f\n", c.setting, c.ours, c.best, c.rival, c.bestRatio(), c.sure)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// drawRatios draws the ratio to each rival over the cells, each curve sorted, and to the best rival.
func drawRatios(w io.Writer, rows []Row) error {
	ours := rows[0].Policy
	p := chart.Panel{Title: ours + "'s goodput over that of …, cells sorted", XLabel: "cells", YLabel: "ratio of goodputs", YMin: 0.9, YMax: 1.5}
	draw := func(name string, rows []Row) {
		for i, c := range compareBest(rows) {
			p.Add(name, float64(i+1), min(c.bestRatio(), 1.5))
		}
	}
	draw("best of all", rows)

	var rivals []string
	for _, r := range rows {
		if r.Policy != ours && !slices.Contains(rivals, r.Policy) {
			rivals = append(rivals, r.Policy)
		}
	}
	for _, rival := range rivals {
		draw(rival, slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.Policy != ours && r.Policy != rival }))
	}

	cells := p.Lines[0].X
	p.Lines = append([]chart.Line{{Name: "ideal", X: []float64{0, float64(len(cells))}, Y: []float64{1, 1}, Dashed: true}}, p.Lines...)
	return chart.Draw(w, []chart.Panel{p})
}
