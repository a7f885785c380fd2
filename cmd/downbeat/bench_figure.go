package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"downbeat.dev/bench/accuracy"
	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/symphony"
)

// benchFigure makes one figure of a paper: a CSV and an SVG, with the published numbers beside ours.
func benchFigure() command {
	return command{name: "figure", summary: "make one figure of a paper as CSV and SVG, with the published numbers beside ours",
		run: func(ctx context.Context, args []string) error {
			var names [2]string // paper and figure; they come before the flags

			// Read the names first, since flag parsing stops at the first word.
			for i := range names {
				if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
					names[i], args = args[0], args[1:]
				}
			}

			switch names[0] {
			case "symphony":
				return figureOfSymphony(ctx, names[1], args)
			case "rim":
				return figureOfRim(ctx, names[1], args)
			case "adainf":
				return figureOfAdaInf(ctx, names[1], args)
			case "proteus":
				return figureOfProteus(ctx, names[1], args)
			case "":
				// Only help can be asked for without a paper.
				if err := parse(figureFlags("PAPER", nil), args); err != nil {
					return err
				}
			}
			return usageErrorf("paper %q: want downbeat bench figure PAPER ID, with PAPER one of symphony, proteus, rim and adainf", names[0])
		}}
}

// figureFlags returns the flag set of a paper's figures. Its help names the paper and the figures, because both come
// before the flags. Without ids it explains how to name a paper.
func figureFlags(paper string, ids []string) *flag.FlagSet {
	name := "downbeat bench figure " + paper
	text := "IDs: " + strings.Join(ids, ", ")
	if ids == nil {
		name, text = "downbeat bench figure", "PAPER is symphony, proteus, rim or adainf; downbeat bench figure PAPER -h lists its IDs and flags."
	}

	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "Usage: downbeat bench figure %s ID [flags]\n\n%s\n\n", paper, text)
		fs.PrintDefaults()
	}
	return fs
}

// figureOfProteus makes one figure of the Proteus paper, with the flags of its traces and profiles.
func figureOfProteus(ctx context.Context, id string, args []string) error {
	fs := figureFlags("proteus", figure.IDs(accuracy.Figures, func(f accuracy.Figure) string { return f.ID }))
	var in accuracyInputs
	in.register(fs)

	// By default a figure uses both traces and both forms of the profiles, unlike bench accuracy.
	if err := errors.Join(fs.Set("trace", "figure4,bursty"), fs.Set("data", "published,repaired")); err != nil {
		return err
	}
	out := fs.String("out", "out/proteus", "`directory` for ID.csv and ID.svg")
	if err := parse(fs, args); err != nil {
		return err
	}

	figure, err := accuracy.FindFigure(id)
	if err != nil {
		return usageErrorf("figure %v", err)
	}
	return runFigure(ctx, figure, &in, *out)
}

func runFigure(ctx context.Context, figure accuracy.Figure, in *accuracyInputs, out string) error {
	// Make the directory before minutes of work.
	if err := goodput.MakeDir(out); err != nil {
		return fmt.Errorf("-out %s: %w", out, err)
	}
	settings, err := in.load()
	if err != nil {
		return err
	}

	fmt.Fprintf(os.Stderr, "proteus %s: %s, seed %d\n", figure.ID, figure.Title, in.seed)
	inputs := &accuracy.Inputs{Settings: settings, Seed: in.seed, Progress: func(text string) { fmt.Fprintln(os.Stderr, "  "+text) }}
	return printFiles(out, figure.ID, figure.Write(ctx, inputs, out))
}

// printFiles prints which files a figure was written to, unless making it failed with err.
func printFiles(dir, id string, err error) error {
	if err != nil {
		return err
	}

	files, err := filepath.Glob(filepath.Join(dir, id+".*"))
	for _, file := range files {
		fmt.Println("wrote", file)
	}
	return err
}

// symphonyInputs registers the flags of Symphony's figures.
func symphonyInputs(fs *flag.FlagSet) *symphony.Inputs {
	in := symphony.DefaultInputs()
	in.Progress = func(text string) { fmt.Fprintln(os.Stderr, "  "+text) }

	// The defaults finish in minutes; the results in the repository took longer.
	fs.IntVar(&in.Goodput.Seeds, "seeds", in.Goodput.Seeds, "`number` of seeds per goodput search, counted together; bench/results/goodput used 5")
	fs.DurationVar(&in.Goodput.Span, "span", in.Goodput.Span, "simulated time per seed; bench/results/goodput used 30s")
	fs.IntVar(&in.Cells, "cells", in.Cells, "`number` of figure 4's 7560 cells to run")
	fs.IntVar(&in.GPUs, "gpus", in.GPUs, "`number` of GPUs of figure 14's cluster")
	fs.DurationVar(&in.Span, "workload", in.Span, "simulated time of figure 14")
	fs.DurationVar(&in.Limit, "limit", in.Limit, "time limit of figure 15's random solver and of its integer program")
	return &in
}

func figureOfSymphony(ctx context.Context, id string, args []string) error {
	fs := figureFlags("symphony", figure.IDs(symphony.Figures, func(f symphony.Figure) string { return f.ID }))
	in := symphonyInputs(fs)
	out := fs.String("out", "out/symphony", "`directory` for ID.csv, ID.svg and claims.csv")
	if err := parse(fs, args); err != nil {
		return err
	}

	figure, err := symphony.FindFigure(id)
	if err != nil {
		return usageErrorf("figure %v", err)
	}
	if err := in.Validate(); err != nil {
		return usageErrorf("bench figure symphony: %v", err)
	}
	if err := goodput.MakeDir(*out); err != nil {
		return fmt.Errorf("-out %s: %w", *out, err)
	}

	fmt.Fprintf(os.Stderr, "symphony %s: %s\n", figure.ID, figure.Title)
	return printFiles(*out, figure.ID, figure.Write(ctx, in, *out))
}
