package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/prepare"
)

// benchPrepare submits requests before and after their inputs are prepared.
func benchPrepare() command {
	return command{name: "prepare", summary: "submit requests before, while or after their inputs are prepared, in virtual time, and count bad requests and refused reads",
		run: func(ctx context.Context, args []string) error {
			o := prepare.DefaultOptions()
			fs := flag.NewFlagSet("downbeat bench prepare", flag.ContinueOnError)
			fs.IntVar(&o.GPUs, "gpus", o.GPUs, "`number` of GPUs")
			fs.IntVar(&o.Models, "models", o.Models, "`number` of models, the first of the 1080 Ti zoo")
			fs.Float64Var(&o.Spread, "spread", o.Spread, "standard `deviation` of the logarithm of a hook's time; 0: the time is constant and known, else it is learnt")
			fs.DurationVar(&o.Trip, "trip", o.Trip, "time of a message between two hosts")
			fs.DurationVar(&o.Span, "span", o.Span, "simulated time of each run")
			fs.Uint64Var(&o.Seed, "seed", o.Seed, "seed of arrivals and hooks")
			hooks := fs.String("hooks", "2ms,5ms,10ms", "median `durations` of the hook that prepares an input, separated by commas")
			loads := fs.String("loads", "0.2,0.4,0.6,0.75,0.85,0.95", "offered `loads`, separated by commas, as shares of what full batches can carry")
			forms := fs.String("forms", strings.Join(prepare.Forms, ","), "`forms` of submitting, separated by commas: none (no hook), after (after it), overlap (at once, and rows that are not there yet are read again), hint (at once, with the time when the input will be there; an early hook is told) and hint-alone (an early hook is not told)")
			format := fs.String("o", "table", "output `format`: table, json or csv")
			if err := parse(fs, args); err != nil {
				return err
			}
			if err := setPrepareLists(&o, *hooks, *loads, *forms); err != nil {
				return usageErrorf("bench prepare: %v", err)
			}
			if err := o.Validate(); err != nil {
				return usageErrorf("bench prepare: %v", err)
			}

			write, err := prepare.NewWriter(os.Stdout, *format, func(r prepare.Row) { _ = figure.WriteLines(os.Stdout, r) })
			if err != nil {
				return usageErrorf("bench prepare: %v", err)
			}
			return prepare.Run(ctx, o, write)
		}}
}

// setPrepareLists reads the options that are lists.
func setPrepareLists(o *prepare.Options, hooks, loads, forms string) error {
	o.Hooks, o.Loads, o.Forms = nil, nil, strings.Split(forms, ",")
	for _, text := range strings.Split(hooks, ",") {
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("-hooks %q: want durations such as 5ms", text)
		}
		o.Hooks = append(o.Hooks, d)
	}

	for _, text := range strings.Split(loads, ",") {
		l, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("-loads %q: want numbers such as 0.8", text)
		}
		o.Loads = append(o.Loads, l)
	}
	return nil
}
