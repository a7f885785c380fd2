package main

import (
	"context"
	"flag"
	"os"
	"strings"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/reconfigure"
)

// benchReconfigure moves models between sub-clusters while they serve.
func benchReconfigure() command {
	return command{name: "reconfigure", summary: "move models between sub-clusters under load, in virtual time, and count bad requests, also when the scheduler dies half-way",
		run: func(ctx context.Context, args []string) error {
			o := reconfigure.DefaultOptions()
			fs := flag.NewFlagSet("downbeat bench reconfigure", flag.ContinueOnError)
			fs.Float64Var(&o.Load, "load", o.Load, "offered load, as a `share` of the GPUs' capacity in full batches")
			fs.IntVar(&o.GPUs, "gpus", o.GPUs, "`number` of GPUs of each sub-cluster")
			fs.IntVar(&o.Clusters, "clusters", o.Clusters, "`number` of sub-clusters")
			fs.IntVar(&o.Models, "models", o.Models, "`number` of models, a multiple of -clusters")
			fs.Float64Var(&o.Share, "share", o.Share, "`share` of the models that one plan moves")
			fs.IntVar(&o.Moves, "moves", o.Moves, "`number` of moves of one model, each in a plan of its own")
			fs.DurationVar(&o.LoadTime, "load-time", o.LoadTime, "time to load a model on one GPU, before its warm-up")
			fs.DurationVar(&o.Span, "span", o.Span, "simulated time of the plan that moves a share")
			fs.Uint64Var(&o.Seed, "seed", o.Seed, "seed of the arrivals")
			scenarios := fs.String("scenario", strings.Join(reconfigure.Scenarios(), ","), "`scenarios`, separated by commas: share (one plan moves -share of the models), again (-moves plans move one model back and forth), killed (the scheduler dies half-way)")
			format := fs.String("o", "table", "output `format`: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}
			if err := checkFormat(*format); err != nil {
				return err
			}
			if err := o.Validate(); err != nil {
				return usageErrorf("bench reconfigure: %v", err)
			}
			chosen := strings.Split(*scenarios, ",")
			if err := reconfigure.CheckScenarios(chosen); err != nil {
				return usageErrorf("bench reconfigure: %v", err)
			}

			rows, err := reconfigure.Run(ctx, o, chosen, func(r reconfigure.Row) {
				// Print each row when its run ends: a run takes a minute.
				if *format == "json" {
					_ = figure.WriteLines(os.Stdout, r) // a closed pipe ends the process
				}
			})
			if err != nil || *format == "json" {
				return err
			}
			return reconfigure.WriteTable(os.Stdout, rows)
		}}
}
