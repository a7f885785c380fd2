package measure

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Print writes the table, the line and the residuals, aligned.
func (r *Result) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "batch\tsamples\tp50 ms\tp99 ms\tℓ(b) ms\tper row ms\tresidual ms\t\n")
	for _, s := range r.Sizes {
		l := r.Table[s.Batch-1]
		fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%s\t%s\t%+.3f\t\n", s.Batch, s.Samples, formatMillis(s.P50), formatMillis(s.P99), formatMillis(l), formatMillis(l/time.Duration(s.Batch)), inMillis(s.Residual))
	}
	if err := t.Flush(); err != nil {
		return err
	}

	// A line that fits nothing would be read as one that does.
	if !r.Fitted {
		_, err := fmt.Fprintf(w, "ℓ(b) is the p%.0f, made non-decreasing; no line fits it\n", 100*Percentile)
		return err
	}
	_, err := fmt.Fprintf(w, "ℓ(b) = α·b + β: α = %s ms, β = %s ms, R² = %.4f (ℓ(b) is the p%.0f without stalls, made non-decreasing)\n",
		formatMillis(r.Line.Alpha), formatMillis(r.Line.Beta), r.Line.R2, 100*Percentile)
	return err
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func formatMillis(d time.Duration) string { return fmt.Sprintf("%.3f", inMillis(d)) }
