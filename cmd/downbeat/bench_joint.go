package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/joint"
)

// benchJoint serves one trace with the methods of all four papers: families, sessions and drift at once.
func benchJoint() command {
	return command{name: "joint", summary: "serve families, sessions and drifting models at once on 16 GPUs of two kinds, in virtual time, beside each paper's method and all four together",
		run: func(ctx context.Context, args []string) error {
			o := joint.DefaultOptions()
			fs := flag.NewFlagSet("downbeat bench joint", flag.ContinueOnError)
			policies := fs.String("policy", "all", policiesHelp(joint.Policies(), func(p joint.Policy) string { return p.Name }))
			loads := fs.String("load", "0.3,0.5,0.7,0.85,1,1.15,1.3,1.5", "`loads`, separated by commas, as shares of the peak")
			fs.DurationVar(&o.Span, "span", o.Span, "simulated time of each policy at each load")
			fs.Uint64Var(&o.Seed, "seed", o.Seed, "seed of requests, sessions, drift schedules and scenes")
			fs.Float64Var(&o.Peak, "peak", o.Peak, "peak, as a `multiple` of the trace's unit load; 0: search for it")
			fs.Float64Var(&o.LearnShare, "learn-share", o.LearnShare, "`share` of GPU time that downbeat's learners buy; 0: they use only idle time")
			fs.BoolVar(&o.Learn, "learn", o.Learn, "train the drifting models for real, in the GPU time that a policy leaves idle")
			fs.StringVar(&o.Models, "models", o.Models, "model repository `directory` with vehicle-s and activity-s")
			out := fs.String("out", "", "`directory` for joint.jsonl and joint.svg; empty: write no files")
			format := fs.String("o", "table", "output `format`: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}
			if err := checkFormat(*format); err != nil {
				return err
			}

			var err error
			if o.Loads, err = listOf("load", *loads, "numbers such as 0.9", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }); err != nil {
				return err
			}
			if o.Policies, err = joint.Select(*policies); err != nil {
				return usageErrorf("-%v", err)
			}
			if err := o.Check(); err != nil {
				return usageErrorf("%v", err)
			}
			return runJoint(ctx, o, *out, *format == "json")
		}}
}

func runJoint(ctx context.Context, o joint.Options, dir string, asJSON bool) error {
	rows, err := joint.Run(ctx, o, func(line string) { fmt.Fprintln(os.Stderr, line) })
	if err != nil {
		return err
	}

	if dir != "" {
		if err := writeJoint(dir, rows); err != nil {
			return fmt.Errorf("-out %s: %w", dir, err)
		}
	}
	if asJSON {
		return figure.WriteLines(os.Stdout, rows...)
	}
	return joint.WriteTable(os.Stdout, rows)
}

// writeJoint writes the rows and the picture to a directory.
func writeJoint(dir string, rows []joint.Row) error {
	if err := goodput.MakeDir(dir); err != nil {
		return err
	}
	lines, err := os.Create(filepath.Join(dir, "joint.jsonl"))
	if err != nil {
		return err
	}
	if err := errors.Join(figure.WriteLines(lines, rows...), lines.Close()); err != nil {
		return err
	}

	picture, err := os.Create(filepath.Join(dir, "joint.svg"))
	if err != nil {
		return err
	}
	return errors.Join(joint.Draw(picture, rows), picture.Close())
}
