package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/spare"
)

// benchSpare measures how much idle GPU time learners use, and what they cost the requests.
func benchSpare() command {
	return command{name: "spare", summary: "measure how much idle GPU time learners use, and what that costs requests, in virtual time",
		run: func(ctx context.Context, args []string) error {
			o := spare.DefaultOptions()
			fs := flag.NewFlagSet("downbeat bench spare", flag.ContinueOnError)
			settings := fs.String("setting", strings.Join(o.Settings, ","), "`settings` of bench goodput, separated by commas")
			loads := fs.String("load", "0.3,0.4,0.5,0.6,0.7,0.8,0.9,0.95,1", "`loads`, separated by commas, as shares of the peak without learners")
			steps := fs.String("step", "2ms,5ms,10ms", "`durations` of a training step, separated by commas, at most 10ms")
			fs.IntVar(&o.Seeds, "seeds", o.Seeds, "`number` of seeds; their requests are counted together")
			fs.DurationVar(&o.Span, "span", o.Span, "simulated time of each seed at each load")
			out := fs.String("out", "", "`directory` for spare.jsonl and spare.svg; empty: write no files")
			format := fs.String("o", "table", "output `format`: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}
			if err := checkFormat(*format); err != nil {
				return err
			}

			o.Settings = strings.Split(*settings, ",")
			var err error
			if o.Loads, err = listOf("load", *loads, "numbers such as 0.9", func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }); err != nil {
				return err
			}
			if o.Steps, err = listOf("step", *steps, "durations such as 5ms", time.ParseDuration); err != nil {
				return err
			}
			if err := o.Check(); err != nil {
				return usageErrorf("%v", err)
			}
			return runSpare(ctx, o, *out, *format == "json")
		}}
}

// listOf parses a flag's comma-separated list. An error says what is wanted.
func listOf[T any](flag, text, want string, parse func(string) (T, error)) (all []T, err error) {
	for _, part := range strings.Split(text, ",") {
		v, err := parse(strings.TrimSpace(part))
		if err != nil {
			return nil, usageErrorf("-%s %q: want %s, separated by commas", flag, part, want)
		}
		all = append(all, v)
	}
	return all, nil
}

func runSpare(ctx context.Context, o spare.Options, dir string, asJSON bool) error {
	rows, err := spare.Run(ctx, o, func(r spare.Row) {
		// Progress goes to standard error, because a setting takes minutes.
		fmt.Fprintf(os.Stderr, "%s at %.2f, steps of %g ms: %.3f of %.3f idle\n", r.Setting, r.Load, r.StepMS, r.Spare, r.Idle)
	})
	if err != nil {
		return err
	}

	if dir != "" {
		if err := writeSpare(dir, rows); err != nil {
			return fmt.Errorf("-out %s: %w", dir, err)
		}
	}

	if asJSON {
		return figure.WriteLines(os.Stdout, rows...)
	}
	return spare.WriteTable(os.Stdout, rows)
}

// writeSpare writes the rows and the picture to a directory.
func writeSpare(dir string, rows []spare.Row) error {
	if err := goodput.MakeDir(dir); err != nil {
		return err
	}

	lines, err := os.Create(filepath.Join(dir, "spare.jsonl"))
	if err != nil {
		return err
	}
	defer lines.Close()
	if err := figure.WriteLines(lines, rows...); err != nil {
		return err
	}

	picture, err := os.Create(filepath.Join(dir, "spare.svg"))
	if err != nil {
		return err
	}
	defer picture.Close()
	return spare.Draw(picture, rows)
}
