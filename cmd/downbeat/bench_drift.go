package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"downbeat.dev/bench/drift"
	"downbeat.dev/bench/figure"
)

// benchDrift compares policies that retrain models beside serving: real training in virtual time.
func benchDrift() command {
	return command{name: "drift", summary: "measure the accuracy of models that retrain while inputs drift, in virtual time with real training",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench drift", flag.ContinueOnError)
			s := drift.DefaultSetting()
			policies := fs.String("policy", "all", "`policies`, separated by commas; all: none, ours, ekya, ekya-live, adainf, adainf-i, adainf-u, adainf-ahead and scrooge; further ones: adainf-apart, adainf-s, adainf-exits, adainf-memory, adainf-m1, adainf-m2 (parts of AdaInf: docs/decisions/0181), clairvoyant (starts each period with its best weights), instant (training takes no time), watch (detects drift and never trains)")
			gpus := fs.String("gpus", "1,4", "`numbers` of emulated GPUs, separated by commas; each is a cluster of its own")
			fs.IntVar(&s.Periods, "periods", s.Periods, "`number` of periods of 50 s of virtual time")
			fs.IntVar(&s.Tests, "tests", s.Tests, "`number` of test inputs per model and period; with 384, accuracies are known to about 1.5 percentage points")
			fs.Float64Var(&s.Load, "load", s.Load, "request rate, as a `share` of the GPUs' capacity")
			fs.Uint64Var(&s.Seed, "seed", s.Seed, "seed of schedules, scenes and requests")
			fs.StringVar(&s.Schedule, "schedule", s.Schedule, "what `drifts`: night (light and weather, mildly) or paper (also how frequent each class is, as much as in AdaInf's figures 5 and 6)")
			fs.BoolVar(&s.Phases, "phases", s.Phases, "let drifts begin at random moments within periods, for the policies ours and watch; without it they begin when a period does")
			fs.StringVar(&s.Models, "models", s.Models, "model repository `directory` with vehicle-s and activity-s")
			format := fs.String("o", "table", "output `format`: table, json, or periods: a line of JSON per policy, period and model, from which bench figure adainf draws")
			lines := fs.String("lines", "", "`file` that gets what -o periods prints, beside the other output")
			if err := parse(fs, args); err != nil {
				return err
			}

			if *format != "periods" {
				if err := checkFormat(*format); err != nil {
					return err
				}
			}

			chosen, err := drift.Select(*policies)
			if err != nil {
				return usageErrorf("-%v", err)
			}
			return runDrift(ctx, s, chosen, *gpus, *format, *lines)
		}}
}

func runDrift(ctx context.Context, s drift.Setting, policies []drift.Policy, gpus, format, lines string) (err error) {
	// Check every number before the first cluster runs for minutes.
	numbers, err := listOf("gpus", gpus, "numbers such as 1,4", strconv.Atoi)
	if err != nil {
		return err
	}
	for _, s.GPUs = range numbers {
		if err := s.Validate(); err != nil {
			return usageErrorf("bench drift: %v", err)
		}
	}

	// The file is opened first, too, and has the lines of each policy as soon as it is measured.
	beside := io.Discard
	if lines != "" {
		f, err := os.Create(lines)
		if err != nil {
			return fmt.Errorf("-lines: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		beside = f
	}

	var rows []drift.Row
	var periods []drift.PeriodRow

	// Each number of GPUs is a separate cluster.
	for _, s.GPUs = range numbers {

		// Progress goes to standard error, because a policy takes minutes.
		for _, p := range policies {
			row, each, err := p.RunPeriods(ctx, s, func(line string) { fmt.Fprintln(os.Stderr, line) })
			if err != nil {
				return fmt.Errorf("drift: %w", err)
			}
			if err := figure.WriteLines(beside, each...); err != nil {
				return fmt.Errorf("-lines: %w", err)
			}
			rows, periods = append(rows, row), append(periods, each...)
		}
	}

	// Standard output has all rows of one kind, once all policies are measured.
	switch format {
	case "json":
		return figure.WriteLines(os.Stdout, rows...)
	case "periods":
		return figure.WriteLines(os.Stdout, periods...)
	}
	return drift.WriteTable(os.Stdout, rows)
}

// figureOfAdaInf makes one figure of the AdaInf paper.
func figureOfAdaInf(ctx context.Context, id string, args []string) error {
	fs := figureFlags("adainf", figure.IDs(drift.Figures, func(f drift.Figure) string { return f.ID }))
	in := &drift.Inputs{Setting: drift.DefaultSetting()}
	periods := fs.String("periods", filepath.Join(driftResults, "periods.jsonl"), "`file` written by downbeat bench drift -o periods, for the figures about learning")
	fs.StringVar(&in.Setting.Models, "models", in.Setting.Models, "model repository `directory`")
	out := fs.String("out", "out/adainf", "`directory` for ID.csv, ID.svg and claims.csv")
	if err := parse(fs, args); err != nil {
		return err
	}

	f, err := drift.FindFigure(id)
	if err != nil {
		return usageErrorf("figure %v", err)
	}

	// Figures that do not use the periods are drawn even if the file is missing.
	if in.Periods, err = drift.ReadPeriods(*periods); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("-periods: %w", err)
	}
	fmt.Fprintf(os.Stderr, "adainf %s: %s\n", f.ID, f.Title)
	return printFiles(*out, f.ID, f.Write(ctx, in, *out))
}
