package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/reconfigure"
	"downbeat.dev/deploy"
)

// benchReconfigure moves models while they serve.
func benchReconfigure() command {
	return command{name: "reconfigure", summary: "move models between sub-clusters under load, in virtual time: how many requests go bad, also when the scheduler dies half-way",
		run: func(ctx context.Context, args []string) error {
			o := reconfigure.DefaultOptions()
			fs := flag.NewFlagSet("downbeat bench reconfigure", flag.ContinueOnError)
			fs.Float64Var(&o.Load, "load", o.Load, "offered, as a `share` of what the GPUs do in full batches")
			fs.IntVar(&o.GPUs, "gpus", o.GPUs, "of each sub-cluster")
			fs.IntVar(&o.Clusters, "clusters", o.Clusters, "sub-clusters")
			fs.IntVar(&o.Models, "models", o.Models, "a multiple of the sub-clusters")
			fs.Float64Var(&o.Share, "share", o.Share, "of the models, that move in one plan")
			fs.IntVar(&o.Moves, "moves", o.Moves, "of one model, a plan each")
			fs.DurationVar(&o.LoadTime, "load-time", o.LoadTime, "of a model on one GPU, before its warm-up")
			fs.DurationVar(&o.Span, "span", o.Span, "simulated time of the plan that moves a share")
			fs.Uint64Var(&o.Seed, "seed", o.Seed, "of arrivals")
			scenarios := fs.String("scenario", strings.Join(reconfigure.Scenarios(), ","), "share, again, killed, comma-separated")
			format := fs.String("o", "table", "output: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}
			if *format != "table" && *format != "json" {
				return deploy.UsageError(fmt.Sprintf("-o %s: want table or json", *format))
			}
			if err := o.Validate(); err != nil {
				return deploy.UsageError("bench reconfigure: " + err.Error())
			}

			rows, err := reconfigure.Run(ctx, o, strings.Split(*scenarios, ","), func(r reconfigure.Row) {
				// Rows come as runs end, which take a minute each.
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
