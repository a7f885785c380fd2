package main

import (
	"context"
	"flag"
	"os"

	"downbeat.dev/bench/figure"
	"downbeat.dev/bench/scale"
)

// benchScale compares autoscalers under a changing load.
func benchScale() command {
	return command{name: "scale", summary: "compare autoscalers under a changing load, in virtual time: GPU-seconds and bad requests",
		run: func(ctx context.Context, args []string) error {
			o := scale.DefaultOptions()
			fs := flag.NewFlagSet("downbeat bench scale", flag.ContinueOnError)
			fs.IntVar(&o.GPUs, "gpus", o.GPUs, "largest `number` of GPUs that the cluster may have")
			fs.IntVar(&o.Models, "models", o.Models, "`number` of models, the first of the 1080 Ti zoo")
			fs.Float64Var(&o.Share, "share", o.Share, "`share` of the GPUs that the load needs on average")
			fs.DurationVar(&o.Span, "span", o.Span, "simulated time")
			fs.DurationVar(&o.Start, "start", o.Start, "time from ordering a GPU to its first batch")
			fs.Float64Var(&o.Gamma, "gamma", o.Gamma, "`shape` of the gamma distribution of the gaps between a model's requests: 1 is Poisson, smaller is burstier")
			fs.Uint64Var(&o.Seed, "seed", o.Seed, "seed of rates and arrivals")
			policies := fs.String("policy", "all", "`autoscalers`, separated by commas: downbeat, paper (Symphony's), clairvoyant (knows the load), static (keeps as many GPUs as the highest load needs), or all")
			format := fs.String("o", "table", "output `format`: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}
			if err := checkFormat(*format); err != nil {
				return err
			}

			with, err := scale.Select(*policies)
			if err != nil {
				return usageErrorf("-%v", err)
			}
			if err := o.Validate(); err != nil {
				return usageErrorf("bench scale: %v", err)
			}

			_, rows, err := scale.Run(ctx, o, with, func(r scale.Row) {
				// Print each row when its policy ends.
				if *format == "json" {
					_ = figure.WriteLines(os.Stdout, r) // a closed pipe ends the process
				}
			})
			if err != nil || *format == "json" {
				return err
			}
			return scale.WriteTable(os.Stdout, rows)
		}}
}
