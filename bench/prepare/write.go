package prepare

import (
	"fmt"
	"io"
)

// NewWriter returns a function that writes a row in a format, table, json or csv, when its run has ended; json writes one
// as JSON.
func NewWriter(out io.Writer, format string, json func(Row)) (func(Row), error) {
	head, line := "", ""
	switch format {
	case "json":
		return json, nil
	case "table":
		head = fmt.Sprintf("%5s  %9s  %6s  %8s  %5s  %-10s  %9s  %8s  %9s  %6s", "GPUS", "HOOK (ms)", "SPREAD", "TRIP(us)", "LOAD", "FORM", "REQUESTS", "BAD (%)", "REFUSED %", "BATCH")
		line = "%5d  %9g  %6g  %8g  %5g  %-10s  %9d  %8.3f  %9.3f  %6.2f\n"
	case "csv":
		head, line = "gpus,hook_ms,spread,trip_us,load,form,requests,bad_pct,refused_pct,batch,seed", "%d,%g,%g,%g,%g,%s,%d,%.4f,%.4f,%.3f,%d\n"
	default:
		return nil, fmt.Errorf("-o %q: want table, json or csv", format)
	}

	fmt.Fprintln(out, head)
	return func(r Row) {
		values := []any{r.GPUs, r.HookMS, r.Spread, r.TripUS, r.Load, r.Form, r.Requests, r.BadPct, r.RefusedPct, r.Batch}
		if format == "csv" {
			values = append(values, r.Seed)
		}
		fmt.Fprintf(out, line, values...)
	}, nil
}
