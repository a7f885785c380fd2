package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"downbeat.dev/bench/dispatch"
	"downbeat.dev/bench/goodput"
)

// benchDispatch measures the scheduler alone, as figure 11 (left) of the Symphony paper does.
func benchDispatch() command {
	return command{name: "dispatch", summary: "measure how many requests per second the scheduler alone dispatches, and how late",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench dispatch", flag.ContinueOnError)
			models := fs.Int("models", 100, "`number` of models")
			gpus := fs.Int("gpus", 10000, "`number` of GPUs")
			variants := fs.Int("variants", 1, "`number` of variants of each model; with two or more, each model is a family")
			kinds := fs.Int("kinds", 1, "`number` of kinds of GPUs")
			cores := fs.Int("cores", 1, "`number` of cores, each with a load generator, a timer loop and a partition")
			each := fs.Duration("each", 300*time.Millisecond, "length of one run; above 400ms, other processes' time slices disturb it")
			tries := fs.Int("tries", 20, "largest `number` of rates to try")
			compare := fs.Bool("compare", true, "also measure a dispatcher with a single mutex and one with a channel per model")
			shared := fs.Bool("shared", false, "run without real-time priority, which needs no right, but other processes disturb the result")
			growth := fs.String("growth", "", "`directory` for growth.csv and growth.svg: measure only how throughput changes with the numbers of models and GPUs")
			format := fs.String("o", "table", "output `format`: table or json")

			if err := parse(fs, args); err != nil {
				return err
			}
			if err := checkFormat(*format); err != nil {
				return err
			}
			if *each < 10*time.Millisecond || *each > time.Minute || *tries < 1 {
				return usageErrorf("-each %v -tries %d: want 10ms to 1m, and at least one", *each, *tries)
			}

			set := dispatch.Setting{Models: *models, GPUs: *gpus, Cores: *cores, Variants: *variants, Kinds: *kinds}
			if err := set.Check(); err != nil {
				return usageErrorf("bench dispatch: %v", err)
			}

			progress := func(line string) { fmt.Fprintln(os.Stderr, line) }

			// The growth measurement has fixed sizes; the flags for a single run do not apply.
			if *growth != "" {
				return writeGrowth(ctx, *growth, progress)
			}

			r, err := dispatch.Run(ctx, set, dispatch.Options{Each: *each, Tries: *tries, Compare: *compare, Shared: *shared}, progress)
			if err != nil {
				return err
			}

			write := dispatch.WriteTable
			if *format == "json" {
				write = dispatch.WriteJSON
			}

			if err := write(os.Stdout, r); err != nil {
				return err
			}

			// Fail if no rate held, so that scripts notice.
			if !r.Pass {
				return fmt.Errorf("no rate held: the lines above say why")
			}
			return nil
		}}
}

func writeGrowth(ctx context.Context, dir string, progress func(string)) error {
	if err := goodput.MakeDir(dir); err != nil { // fail before minutes of work, not after
		return fmt.Errorf("-growth %s: %w", dir, err)
	}
	models, gpus, err := dispatch.Growth(ctx, progress)
	if err != nil {
		return err
	}

	csv, err := os.Create(filepath.Join(dir, "growth.csv"))
	if err != nil {
		return err
	}
	defer csv.Close()
	if err := dispatch.WriteGrowthCSV(csv, models, gpus); err != nil {
		return err
	}

	svg, err := os.Create(filepath.Join(dir, "growth.svg"))
	if err != nil {
		return err
	}
	defer svg.Close()
	return dispatch.WriteGrowthSVG(svg, models, gpus)
}
