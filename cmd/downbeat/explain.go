//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"downbeat.dev/core/engine"
)

func explainCommand() command {
	return command{"explain", "explain what GPU time costs now, and which variants answer each family and why", runExplain}
}

func runExplain(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("downbeat explain", flag.ContinueOnError)
	status := addStatusFlags(fs, "downbeat serve's gateway, or of a scheduler's -metrics")
	all := fs.Bool("all", false, "also list accuracy floors that no request asked for in the last minute")
	if err := parse(fs, args); err != nil {
		return err
	}

	var x engine.Explanation
	printed, err := status.ask(ctx, "/v2/downbeat/explain", &x)
	if printed || err != nil {
		return err
	}
	return printExplanation(os.Stdout, &x, *all)
}

func printExplanation(out io.Writer, x *engine.Explanation, all bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(x.Kinds) == 0 {
		fmt.Fprintln(w, "GPU time has no price: no service has variants or kinds of GPUs to choose from.")
	} else {
		fmt.Fprintln(w, "GPUS OF\tNUMBER\tPRICE (ACCURACY/GPU S)\tLAST MINUTE\tBUSY\tBAD\tBOUGHT BY LEARNERS")
	}

	for _, k := range x.Kinds {
		fmt.Fprintf(w, "%s\t%d\t%.4g\t%.4g\t%.0f %%\t%.2f %%\t%.1f %%\n", k.Name, k.GPUs, k.Price, k.PriceMinute, 100*k.Busy, 100*k.Bad, 100*k.Learning)
	}
	if err := w.Flush(); err != nil {
		return err
	}

	if err := printSpare(out, x.Spare); err != nil {
		return err
	}
	for i := range x.Families {
		f := &x.Families[i]

		// Always print a family's first floor, so that no family is missing.
		first := i == 0 || x.Families[i-1].Family != f.Family
		if !all && !first && f.Minute.Answers == 0 && len(f.Minute.Drops) == 0 {
			continue
		}
		if err := printFamily(out, f); err != nil {
			return err
		}
	}
	return nil
}

// printSpare prints the learners' steps and where they may run.
func printSpare(out io.Writer, all []engine.SpareExplanation) error {
	if len(all) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nSPARE WORK\tOF\tSTEP MS\tWEIGHT\tSTATE")
	for _, s := range all {
		state := "gets idle GPUs"
		if s.Suspended {
			state = "suspended: the backend did not report the end of a step"
		}
		fmt.Fprintf(w, "%s\t%s\t%.3g\t%.3g\t%s\n", s.Name, s.Backend, s.Step, s.Weight, state)
	}
	return w.Flush()
}

// printFamily prints how the scheduler answers a family at one accuracy floor.
func printFamily(out io.Writer, f *engine.FamilyExplanation) error {
	asked := "without a floor"
	if f.Asked {
		asked = "with a floor"
	}
	fmt.Fprintf(out, "\n%s, accuracy %v or more, asked %s: %.4g requests/s, %d queued\n", f.Family, f.Floor, asked, f.Rate, f.Queued)
	if f.Why != "" {
		fmt.Fprintf(out, "  not served: %s\n", f.Why)
	}

	spans := []*engine.Answered{&f.Lately, &f.Minute}
	if f.Lately.Seconds == f.Minute.Seconds {
		spans = spans[1:] // both began when the family did
	}
	for _, a := range spans {
		if a.Seconds == 0 {
			continue // it was never served
		}
		span := fmt.Sprintf("last %.0f s", a.Seconds)
		if len(spans) == 1 {
			span = fmt.Sprintf("since its start, %.2g s", a.Seconds)
		}
		fmt.Fprintf(out, "  %s: %d answered", span, a.Answers)
		if a.Answers > 0 {
			fmt.Fprintf(out, ", by variants of accuracy %.4f:", a.Accuracy)
		}
		for _, v := range a.Variants {
			fmt.Fprintf(out, " %s %.1f %%", v.Model, 100*v.Share)
		}
		fmt.Fprintln(out)
		for _, d := range a.Drops {
			fmt.Fprintf(out, "    %d dropped by %q (%s): %s\n", d.Requests, d.Rule, d.Reason, d.Text)
		}
	}

	switch n := f.Next; {
	case n != nil:
		fmt.Fprintf(out, "  one request more: %s on %s, %.3g ms of GPU time for %.3g of accuracy\n", n.Model, n.Kind, n.GPUTime, n.Cost)
	case f.Why == "":
		fmt.Fprintln(out, "  one request more: no variant would answer it")
	}

	if len(f.Variants) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  VARIANT\tACCURACY\tON\tBATCH\tGPU MS\t")

	// For a variant that is left out, print the reason instead of its use.
	for _, v := range f.Variants {
		why := "intended"
		if !v.Intended {
			why = v.LeftOut
		}
		use := "–\t–" // it may not answer there, or nothing is known of it
		if v.Batch > 0 {
			use = fmt.Sprintf("%d\t%.3g", v.Batch, v.GPUTime)
		}
		fmt.Fprintf(w, "  %s:%s\t%.4g\t%s\t%s\t%s\n", v.Model, v.Version, v.Accuracy, v.Kind, use, why)
	}
	return w.Flush()
}
