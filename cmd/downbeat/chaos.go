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
	"downbeat.dev/deploy"
)

// chaosCommand runs experiments on deployments of this binary, and is a caller's process of theirs.
func chaosCommand() command {
	return command{name: "chaos", summary: "kill, stop, starve and cut off parts of a deployment, and account for every request", run: runChaos}
}

func runChaos(ctx context.Context, args []string) error {
	var o chaos.Options
	fs := flag.NewFlagSet("downbeat chaos", flag.ContinueOnError)
	only := fs.String("only", "", "`expression` that names of experiments match; empty: all, or the short form's")
	fs.BoolVar(&o.Short, "short", false, "the short form: a minute")
	fs.IntVar(&o.Repeats, "repeats", 1, "trials of each experiment, with seeds one after another")
	fs.Uint64Var(&o.Seed, "seed", 1, "names arrivals, lost packets and the order of faults")
	fs.DurationVar(&o.Limit, "limit", time.Hour, "no experiment begins after it")
	fs.BoolVar(&o.Loopback, "loopback", false, "all parts on loopback: no harm to packets, no root")
	fs.StringVar(&o.Logs, "logs", "", "`directory` for what every process says; empty: nowhere")
	verbose := fs.Bool("v", false, "tell every trial")
	format := fs.String("o", "table", "output: table or json")
	caller := fs.String("caller", "", "internal: be the caller that this `configuration` says")

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
		return deploy.UsageError(fmt.Sprintf("chaos: -repeats %d -limit %v: want at least 1, and 0 or more", o.Repeats, o.Limit))
	}

	if *only != "" {
		var err error
		if o.Only, err = regexp.Compile(*only); err != nil {
			return fmt.Errorf("chaos: -only: %w", err)
		}
	}

	// The parts and the caller are this very binary, started again.
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

// reportChaos prints results, as lines while they come or as a table at the end. A missed bar is an error.
func reportChaos(ctx context.Context, o chaos.Options, format string) error {
	var all []chaos.Result
	missed := 0
	err := chaos.Run(ctx, o, func(r chaos.Result) {
		// Results are written as trials end: the whole may take an hour.
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

	// The exit status tells whether every bar was met.
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
