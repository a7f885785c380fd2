package dispatch

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// WriteJSON prints a result as one object on one line.
func WriteJSON(w io.Writer, r Result) error { return json.NewEncoder(w).Encode(r) }

// WriteTable prints a result for people.
func WriteTable(w io.Writer, r Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "models, gpus, cores\t%d, %d, %d\n", r.Models, r.GPUs, r.Cores)
	fmt.Fprintf(t, "highest rate held\t%.2f M requests/s\t(lag ≤ %v, dropped ≤ %.1f %%, no allocations)\n", r.RPS/1e6, lagLimit, 100*droppedLimit)
	fmt.Fprintf(t, "per request, all cores\t%.1f ns\tbatches of %.1f; %.1f ns of CPU when time is virtual\n", r.NsPerReq, r.BatchMean, r.StepNs)
	fmt.Fprintf(t, "to move its memory alone\t%.1f ns\t%.2f times that in virtual time; the generator %.1f ns of both\n", r.FloorNs, r.FloorRatio, r.GeneratorNs)
	fmt.Fprintf(t, "allocations per request\t%.3f\n", r.AllocsPerReq)
	fmt.Fprintf(t, "dropped\t%.3f %%\n", r.DroppedPct)
	fmt.Fprintf(t, "generator's lag\t%v at most\n", time.Duration(r.LagMax))
	fmt.Fprintf(t, "ready → grant at 70 %%\tp50 %v\tp99 %v\n", time.Duration(r.GrantP50), time.Duration(r.GrantP99))
	fmt.Fprintf(t, "timer error, idle\tp50 %v\tp99 %v\n", time.Duration(r.TimerP50), time.Duration(r.TimerP99))
	for _, n := range r.Compare {
		fmt.Fprintf(t, "%s\tholds %.2f M/s\tpushed %.2f M/s: %.1f %% missed, %.1f allocations per request\n", n.Name, n.RPS/1e6, n.Pushed/1e6, n.MissedPct, n.AllocsPer)
	}
	fmt.Fprintf(t, "real-time priority\t%v\n", r.RealTime)
	fmt.Fprintf(t, "pass\t%v\n", r.Pass)
	return t.Flush()
}
