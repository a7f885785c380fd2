package goodput

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// ReadJSON reads the output of WriteJSON. It has no batch sizes and delays of figures 8 and 9.
func ReadJSON(r io.Reader) ([]Row, error) {
	var rows []Row
	for d := json.NewDecoder(r); ; {
		var row Row
		switch err := d.Decode(&row); {
		case errors.Is(err, io.EOF):
			return rows, nil
		case err != nil:
			return nil, fmt.Errorf("row %d: %w", len(rows)+1, err)
		case row.Setting == "" || row.Policy == "":
			return nil, fmt.Errorf("row %d: want a setting and a policy", len(rows)+1)
		}
		rows = append(rows, row)
	}
}

// WriteTable prints rows for people.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "setting\tpolicy\tgoodput r/s\tworst bad %\tof bound\tbound r/s\tpublished r/s\tmean batch\tbusy\t")
	last := ""
	for _, r := range rows {
		name := r.Setting
		if name == last {
			name = ""
		}
		last = r.Setting

		published := "–"
		if r.Published != nil {
			published = fmt.Sprintf("%.0f", *r.Published)
		}
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.2f\t%.3f\t%.0f\t%s\t%.1f\t%.3f\t%s\n", name, r.Policy, r.Goodput, r.BadPct,
			r.Goodput/r.Bound, r.Bound, published, r.Batch, r.Busy, r.sweepNote())
	}
	return t.Flush()
}

func (r Row) sweepNote() string {
	var out []string
	if r.FlatTop != nil {
		out = append(out, fmt.Sprintf("at %g× load: %.3f of the best", r.Points[len(r.Points)-1].Load, *r.FlatTop))
	}
	if r.BusyGap != nil && r.FlatTop == nil {
		out = append(out, fmt.Sprintf("busy within %.3f of load", *r.BusyGap))
	}
	return strings.Join(out, ", ")
}

// WriteCSV prints the table's columns, unrounded where rounding would lose information.
func WriteCSV(w io.Writer, rows []Row) error {
	var b strings.Builder
	b.WriteString("setting,policy,goodput_rps,bad_pct,bound_rps,published_rps,seeds,span_s,rates,ctrl_us,data_us,batch_mean,busy,seed_base\n")
	for _, r := range rows {
		published := ""
		if r.Published != nil {
			published = fmt.Sprintf("%g", *r.Published)
		}
		fmt.Fprintf(&b, "%s,%s,%.1f,%.3f,%.1f,%s,%d,%g,%s,%g,%g,%.2f,%.4f,%d\n", r.Setting, r.Policy, r.Goodput, r.BadPct, r.Bound,
			published, r.Seeds, r.SpanS, r.Rates, r.CtrlUS, r.DataUS, r.Batch, r.Busy, r.SeedBase)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeSweep prints figure 10's points.
func writeSweep(w io.Writer, rows []Row) error {
	var b strings.Builder
	b.WriteString("setting,policy,load,offered_rps,good_rps,bad_pct,busy\n")
	for _, r := range rows {
		for _, p := range r.Points {
			fmt.Fprintf(&b, "%s,%s,%g,%.1f,%.1f,%.3f,%.4f\n", r.Setting, r.Policy, p.Load, p.Offered, p.Good, p.BadPct, p.Busy)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeSizes prints figure 8's distribution: the share of requests in batches of each size.
func writeSizes(w io.Writer, rows []Row) error {
	var b strings.Builder
	b.WriteString("setting,policy,batch,share_of_requests\n")
	for _, r := range rows {
		if r.delays == nil {
			continue
		}
		for size, share := range r.BatchShares() {
			if share > 0 {
				fmt.Fprintf(&b, "%s,%s,%d,%.5f\n", r.Setting, r.Policy, size, share)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// BatchShares returns, by size, the share of requests in batches of that size; r must come from Compare.
func (r Row) BatchShares() []float64 {
	sum := 0
	for _, n := range r.sizes {
		sum += n
	}
	out := make([]float64, len(r.sizes))
	for b, n := range r.sizes {
		out[b] = float64(n) / float64(max(1, sum))
	}
	return out
}

// writeDelays prints figure 9's percentiles.
func writeDelays(w io.Writer, rows []Row) error {
	var b strings.Builder
	b.WriteString("setting,policy,percentile,queueing_ms\n")
	for _, r := range rows {
		for q, d := range r.delays {
			fmt.Fprintf(&b, "%s,%s,%d,%.3f\n", r.Setting, r.Policy, q, d)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// MakeDir creates a directory for results, and fails early if it is not writable.
func MakeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// WriteDir writes goodput.csv and goodput.svg to a directory, which it creates, and the figures that the rows
// contain: fig8, fig9, fig10 as CSV and SVG, fig11 and fig13 as SVG, and for a grid the ratio to the best rival.
func WriteDir(dir string, rows []Row) error {
	if err := MakeDir(dir); err != nil {
		return err
	}

	// A figure is written if the rows have its settings.
	has := func(prefix string) bool {
		for _, r := range rows {
			if strings.HasPrefix(r.Setting, prefix) {
				return true
			}
		}
		return false
	}

	type output struct {
		name  string
		when  bool
		write func(io.Writer, []Row) error
	}

	for _, o := range []output{
		{"goodput.csv", true, WriteCSV}, {"goodput.svg", true, drawGoodput},
		{"fig8.csv", has("table4"), writeSizes}, {"fig8.svg", has("table4"), drawSizes},
		{"fig9.csv", has("table4"), writeDelays}, {"fig9.svg", has("table4"), drawDelays},
		{"fig10.csv", has("fig10"), writeSweep}, {"fig10.svg", has("fig10"), drawSweep},
		{"grid.csv", has("grid-"), writeRatios}, {"grid.svg", has("grid-"), drawRatios},
		{"fig11.svg", has("fig11"), drawGPUs}, {"fig13.svg", has("fig13"), drawNetwork},
	} {
		if !o.when {
			continue
		}
		f, err := os.Create(filepath.Join(dir, o.name))
		if err != nil {
			return err
		}
		if err := errors.Join(o.write(f, rows), f.Close()); err != nil {
			return fmt.Errorf("write %s: %w", o.name, err)
		}
	}
	return nil
}
