package load

import (
	_ "embed"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"downbeat.dev/bench/chart"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// pageRow is a model in the page's table.
type pageRow struct {
	Name                  string
	SLO                   time.Duration
	Offered, Good         float64 // requests/s
	Bad                   float64 // percent
	P50, P90, P99, P999   float64 // ms
	Served, Late, Dropped int64
}

// WritePage writes the report as one self-contained HTML file with plots and without scripts. facts are pairs of name
// and value, such as the seed.
func (r *Report) WritePage(w io.Writer, facts ...string) error {
	plots, err := r.drawPlots()
	if err != nil {
		return err
	}

	names, counts := r.Outcomes()
	type outcome struct {
		Name  string
		Count int64
		Share float64
	}
	var outcomes []outcome
	for _, n := range names {
		outcomes = append(outcomes, outcome{n, counts[n], 100 * float64(counts[n]) / float64(max(1, r.Sent()))})
	}

	var pairs [][2]string
	for i := 0; i+1 < len(facts); i += 2 {
		pairs = append(pairs, [2]string{facts[i], facts[i+1]})
	}

	return pageTemplate.Execute(w, map[string]any{
		"Facts": pairs, "Rows": r.pageRows(), "Outcomes": outcomes, "Plots": template.HTML(plots), //nolint:gosec // drawn here, names escaped
		"Sent": r.Sent(), "Ended": r.Ended(), "Elapsed": r.elapsed.Round(time.Millisecond), "Goodput": r.Goodput(), "Bad": r.BadPercent(),
		"P99": milliseconds(r.Percentile(99)), "Lag": milliseconds(r.LagMax()), "Bin": r.timeline.Width,
	})
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (r *Report) pageRows() []pageRow {
	var rows []pageRow
	secs := max(r.elapsed.Seconds(), 1e-9)
	for i := range r.Rows {
		row := &r.Rows[i]
		if row.Offered == 0 {
			continue
		}

		ms := func(p float64) float64 { return float64(row.Latency.ValueAtQuantile(p)) / 1000 }
		rows = append(rows, pageRow{Name: r.Models[i].Name, SLO: r.Models[i].SLO, Offered: float64(row.Offered) / secs, Good: float64(row.Good) / secs,
			Bad: 100 * float64(row.Offered-row.Good) / float64(row.Offered), P50: ms(50), P90: ms(90), P99: ms(99), P999: ms(99.9),
			Served: row.Outcomes[Served], Late: row.Outcomes[Late], Dropped: row.Offered - row.Outcomes[Served] - row.Outcomes[Late]})
	}
	return rows
}

// drawPlots draws rates and latencies over time, and the distribution of each model's latencies.
func (r *Report) drawPlots() (string, error) {
	rates := chart.Panel{Title: "requests by when they were due", XLabel: "seconds", YLabel: "requests/s"}
	latency := chart.Panel{Title: "latency by when requests were due", XLabel: "seconds", YLabel: "ms"}
	bad := chart.Panel{Title: "not answered in time", XLabel: "seconds", YLabel: "share", YMax: 0.01}
	for _, m := range r.timeline.Moments() {
		x := m.At.Seconds()
		rates.Add("offered", x, m.Offered)
		rates.Add("in time", x, m.Good)
		if m.Offered > 0 {
			bad.Add("bad", x, (m.Offered-m.Good)/m.Offered)
		}
		if m.P50 > 0 {
			latency.Add("p50", x, milliseconds(m.P50))
			latency.Add("p99", x, milliseconds(m.P99))
		}
	}

	shares := chart.Panel{Title: "latency of answered requests", XLabel: "ms", YLabel: "share of them up to it", YMax: 1}
	for i := range r.Rows {
		if r.Rows[i].Latency.TotalCount() > 0 {
			addShares(&shares, r.Models[i].Name, r.Rows[i].Latency)
		}
	}

	// Skip panels with an empty range, which would divide by it.
	panels := []chart.Panel{rates, latency, shares, bad}
	for i := range panels {
		panels[i].XMax, panels[i].YMax = max(panels[i].XMax, 1), max(panels[i].YMax, 0.01)
	}

	var b strings.Builder
	err := chart.Draw(&b, panels)
	return b.String(), err
}

// addShares draws a histogram's distribution up to its 99.9th percentile.
func addShares(p *chart.Panel, name string, h *hdrhistogram.Histogram) {
	for q := 0.0; q <= 99.9; q += 0.9 {
		p.Add(name, float64(h.ValueAtQuantile(q))/1000, q/100)
	}
}
