//go:build linux

package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes one result as a line.
func WriteJSON(w io.Writer, r Result) error { return json.NewEncoder(w).Encode(r) }

// WriteTable writes all results, and the measures of each below it.
func WriteTable(w io.Writer, all []Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "experiment\trepeats\tsent\tgood\tunaccounted\twrong\tlate max\trecover p99\tmeasures (median, bar)\tverdict")
	for _, r := range all {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t%.0f ms\t%s\t%s\t%s\n", r.Experiment, r.Repeats, r.Sent, r.Good, r.Unaccounted, r.Wrong,
			r.LateMax, r.recoverText(), r.measureText(), r.verdict())
	}
	return t.Flush()
}

func (r Result) recoverText() string {
	if r.Recover == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f ms", *r.Recover)
}

func (r Result) measureText() string {
	var all []string
	for _, m := range r.Measures {
		bound := "≥"
		if m.AtMost {
			bound = "≤"
		}
		all = append(all, fmt.Sprintf("%s %.4g (%s %.4g)", m.Name, m.Median, bound, m.Bar))
	}
	return strings.Join(all, "; ")
}

func (r Result) verdict() string {
	switch {
	case r.Skipped != "":
		return "skipped: " + r.Skipped
	case r.Broken != "":
		return "broken: " + strings.ReplaceAll(r.Broken, "\n", " ")
	case len(r.Missed) > 0:
		return "MISSED: " + strings.Join(r.Missed, "; ")
	}
	return "kept"
}
