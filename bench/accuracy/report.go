package accuracy

import (
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"text/tabwriter"

	"downbeat.dev/bench/figure"
)

// WriteCSV prints the same fields under a header of their names.
func WriteCSV(w io.Writer, rows []Row) error {
	c := csv.NewWriter(w)

	// The columns are the JSON names of a Row's fields, so that both formats agree.
	var head []string
	kind := reflect.TypeFor[Row]()
	for i := range kind.NumField() {
		head = append(head, kind.Field(i).Tag.Get("json"))
	}
	if err := c.Write(head); err != nil {
		return err
	}

	for _, r := range rows {
		var fields []string
		v := reflect.ValueOf(r)
		for i := range kind.NumField() {
			fields = append(fields, formatField(v.Field(i)))
		}
		if err := c.Write(fields); err != nil {
			return err
		}
	}

	c.Flush()
	return c.Error()
}

// formatField prints numbers with at most six decimals.
func formatField(v reflect.Value) string {
	if v.Kind() == reflect.Float64 {
		return figure.Number(v.Float())
	}
	return fmt.Sprint(v.Interface())
}

// WriteTable prints rows for people.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "trace\tdata\tpolicy\tSLO\tload s\tserved r/s\tviolations %\taccuracy %\tbound %\tdrop 1s %\tdrop 10s %\tworst family\tplan ms\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%gx\t%g\t%.1f\t%.3f\t%.2f\t%.2f\t%.2f\t%.2f\t%s %.2f\t%.3g\t\n", r.Trace, r.Data, r.Policy, r.SLOScale, r.LoadTimeS,
			r.ThroughputRPS, 100*r.ViolationRatio, 100*r.EffectiveAccuracy, 100*r.LPBoundAccuracy, 100*r.LargestDrop1s, 100*r.LargestDrop10s,
			r.WorstFamily, 100*r.WorstFamilyDrop, r.PlanMS)
	}
	return t.Flush()
}
