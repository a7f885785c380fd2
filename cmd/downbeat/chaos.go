//go:build linux

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"downbeat.dev/bench/chaos"
)

// chaosCommand runs experiments on deployments of this binary. With -caller it is the calling process of a trial.
func chaosCommand() command {
	return command{name: "chaos", summary: "kill, stop, starve and disconnect parts of a deployment, and account for every request", run: runChaos}
}

func runChaos(ctx context.Context, args []string) error {
	var o chaos.Options
	fs := flag.NewFlagSet("downbeat chaos", flag.ContinueOnError)
	only := fs.String("only", "", "run only the experiments whose names match this regular `expression`; empty: all, or with -short its own")
	fs.BoolVar(&o.Short, "short", false, "run only the worst cases, which take a minute")
	fs.IntVar(&o.Repeats, "repeats", 1, "`number` of trials of each experiment, with consecutive seeds")
	fs.Uint64Var(&o.Seed, "seed", 1, "seed of arrivals, lost packets and the order of faults")
	fs.DurationVar(&o.Limit, "limit", time.Hour, "start no experiment after this time")
	fs.BoolVar(&o.Loopback, "loopback", false, "run all parts on loopback, without lost and delayed packets; needs no root")
	fs.StringVar(&o.Logs, "logs", "", "`directory` for the logs of all processes; empty: discard them")
	verbose := fs.Bool("v", false, "print every trial")
	format := fs.String("o", "table", "output `format`: table or json")
	caller := fs.String("caller", "", "internal: be the caller that this `configuration` describes")

	if err := parse(fs, args); err != nil {
		return err
	}

	// A child of this command is the caller of a trial.
	if *caller != "" {
		return beCaller(ctx, *caller)
	}

	if err := checkFormat(*format); err != nil {
		return err
	}
	if o.Repeats < 1 || o.Limit < 0 {
		return usageErrorf("chaos: -repeats %d -limit %v: want at least 1, and 0 or more", o.Repeats, o.Limit)
	}

	if *only != "" {
		var err error
		if o.Only, err = regexp.Compile(*only); err != nil {
			return usageErrorf("chaos: -only: %v", err)
		}
	}

	if err := o.Check(); err != nil {
		return usageErrorf("chaos: %v", err)
	}

	// The parts and the caller run as further processes of this binary.
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	o.Binary, o.Caller = exe, []string{exe, "chaos", "-caller"}

	if *verbose {
		o.Progress = os.Stderr
	}
	return reportChaos(ctx, o, *format)
}

// reportChaos prints results: JSON lines as trials end, or one table at the end. It returns an error if an experiment
// missed a bar.
func reportChaos(ctx context.Context, o chaos.Options, format string) error {
	var all []chaos.Result
	missed := 0
	err := chaos.Run(ctx, o, func(r chaos.Result) {
		// Write each result when its trial ends: all of them may take an hour.
		if format == "json" {
			_ = chaos.WriteJSON(os.Stdout, r)
		}
		if all = append(all, r); !r.Passed() {
			missed++
		}
	})
	if err != nil {
		return err
	}

	if format == "table" {
		if err := chaos.WriteTable(os.Stdout, all); err != nil {
			return err
		}
	}

	// The exit status says whether every bar was met.
	if missed > 0 {
		return fmt.Errorf("chaos: %d of %d experiments missed a bar", missed, len(all))
	}
	return nil
}

func beCaller(ctx context.Context, text string) error {
	var c chaos.CallerConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return fmt.Errorf("caller: %w", err)
	}
	return chaos.RunCaller(ctx, c, os.Stdin, os.Stdout)
}
