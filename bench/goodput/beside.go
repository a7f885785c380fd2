package goodput

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"downbeat.dev/bench/policy"
	"downbeat.dev/core/sim"
)

// besideRates are the offered loads of Beside; the last is near the highest load that deferred batching sustains.
var besideRates = []float64{3000, 4000, 5000, 5400}

// Beside serves ResNet50 (Symphony, table 4: 8 GPUs, 25 ms) in virtual time at four loads, with Downbeat's deferred
// batching and with eager dispatch, and prints one table. It takes at most a few seconds of one core.
func Beside(ctx context.Context, w io.Writer) error {
	o := DefaultOptions()
	o.Seeds, o.Span = 1, 20e9
	s, err := One("table4-resnet50")
	if err != nil {
		return err
	}

	load, err := Prepare(s, o, besideRates[len(besideRates)-1])
	if err != nil {
		return err
	}

	policies := []Policy{
		{"deferred", func(w *sim.World) sim.Server { return sim.NewDownbeat(w) }},
		{"eager", policy.NewEager},
	}

	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "offered r/s\t")
	for _, p := range policies {
		fmt.Fprintf(t, "%s goodput\tbad %%\tmean batch\t", p.Name)
	}
	fmt.Fprintln(t)

	for _, rate := range besideRates {
		fmt.Fprintf(t, "%.0f\t", rate)
		for _, p := range policies {
			if err := ctx.Err(); err != nil {
				return err
			}

			sum := load.Run(p, rate)
			_, bad := sum.BadShare()
			fmt.Fprintf(t, "%.0f\t%.2f\t%.1f\t", sum.Good(o), 100*bad, sum.BatchMean())
		}
		fmt.Fprintln(t)
	}

	if err := t.Flush(); err != nil {
		return err
	}

	_, err = fmt.Fprintf(w, "%d GPUs in virtual time, %s, ℓ(b) = %v·b + %v, every answer due within %v\n",
		s.GPUs, s.Models[0].Name, s.Models[0].Alpha, s.Models[0].Beta, s.Models[0].SLO)
	return err
}

// Good returns the served requests per second of one seed's span.
func (s *Sum) Good(o Options) float64 {
	n := 0
	for m := range s.Total {
		n += s.Total[m] - s.Bad[m]
	}
	return float64(n) / (o.Span.Seconds() * float64(o.Seeds))
}

// Count returns the number of requests, and of those that were not served in time.
func (s *Sum) Count() (total, bad int) {
	for m := range s.Total {
		total += s.Total[m]
		bad += s.Bad[m]
	}
	return total, bad
}

// BatchMean returns the mean size of a batch.
func (s *Sum) BatchMean() float64 {
	n := 0
	for _, k := range s.SizeSum {
		n += k
	}
	return float64(n) / float64(max(1, s.Batches))
}
