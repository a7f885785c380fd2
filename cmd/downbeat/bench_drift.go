package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"downbeat.dev/bench/drift"
	"downbeat.dev/bench/figure"
	"downbeat.dev/deploy"
)

// benchDrift lets policies learn beside serving, with real training, in virtual time.
func benchDrift() command {
	return command{name: "drift", summary: "night falls and lifts: accuracy with and without learning beside serving, real training in virtual time",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench drift", flag.ContinueOnError)
			s := drift.DefaultSetting()
			policies := fs.String("policy", "all", "policies, comma-separated: none, ours, ekya")
			gpus := fs.String("gpus", "1,4", "numbers of emulated GPUs, comma-separated")
			fs.IntVar(&s.Periods, "periods", s.Periods, "periods of 50 s")
			fs.Float64Var(&s.Load, "load", s.Load, "requests, as a share of what the GPUs can answer")
			fs.Float64Var(&s.Spare, "spare", s.Spare, "share of the idle GPU time that learning may use")
			fs.Uint64Var(&s.Seed, "seed", s.Seed, "of schedules, scenes and requests")
			fs.StringVar(&s.Models, "models", s.Models, "model repository with vehicle-s and activity-s")
			format := fs.String("o", "table", "output: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}

			if err := checkFormat(*format); err != nil {
				return err
			}

			chosen, err := drift.Select(*policies)
			if err != nil {
				return deploy.UsageError("-" + err.Error())
			}
			return runDrift(ctx, s, chosen, *gpus, *format == "json")
		}}
}

func runDrift(ctx context.Context, s drift.Setting, policies []drift.Policy, gpus string, asJSON bool) error {
	var rows []drift.Row

	// Each number of GPUs is a cluster of its own.
	for _, text := range strings.Split(gpus, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return deploy.UsageError(fmt.Sprintf("-gpus %q: want numbers such as 1,4", text))
		}
		s.GPUs = n

		// Progress goes to the standard error: a policy takes minutes.
		for _, p := range policies {
			row, err := p.Run(ctx, s, func(line string) { fmt.Fprintln(os.Stderr, line) })
			if err != nil {
				return fmt.Errorf("drift: %w", err)
			}
			rows = append(rows, row)
		}
	}

	if asJSON {
		return figure.WriteLines(os.Stdout, rows...)
	}
	return drift.WriteTable(os.Stdout, rows)
}
