package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"strings"

	"downbeat.dev/bench/plans"
)

// benchPlan assigns models to sub-clusters, beside the paper's integer program solved by HiGHS and its random
// baseline.
func benchPlan() command {
	return command{name: "plan", summary: "assign models to sub-clusters and report balance, time and moves, beside HiGHS and random assignments",
		run: func(ctx context.Context, args []string) error {
			o := plans.DefaultAssignOptions()
			fs := flag.NewFlagSet("downbeat bench plan", flag.ContinueOnError)
			sizes := fs.String("sizes", "12x3,20x3,60x3,400x4,800x20,10000x100", "`sizes`, each MODELSxPARTS, separated by commas; PARTS is the number of sub-clusters")
			solvers := fs.String("solver", strings.Join(o.Solvers, ","), "`solvers`, separated by commas: local (ours), random, and highs, which needs deploy/highs and takes at most 2,000 binary variables")
			fs.IntVar(&o.Seeds, "seeds", o.Seeds, "`number` of instances of each size")
			fs.DurationVar(&o.Limit, "limit", o.Limit, "time limit of random and highs")
			fs.BoolVar(&o.Drift, "drift", o.Drift, "also plan the next epoch, in which the rates have changed and at most 5 % of the models may move")
			format := fs.String("o", "table", "output `format`: table or json")
			if err := parse(fs, args); err != nil {
				return err
			}
			if err := checkFormat(*format); err != nil {
				return err
			}

			var err error
			if o.Sizes, err = plans.ParseSizes(*sizes); err != nil {
				return usageErrorf("bench plan: %v", err)
			}
			o.Solvers = strings.Split(*solvers, ",")
			if err := o.Validate(); err != nil {
				return usageErrorf("bench plan: %v", err)
			}

			var rows []plans.AssignRow

			// Print each JSON line when its size ends: the largest take minutes.
			err = plans.RunAssign(ctx, o, func(r plans.AssignRow) {
				if *format == "json" {
					_ = plans.WriteAssignJSON(os.Stdout, []plans.AssignRow{r})
				}
				rows = append(rows, r)
			})

			// Print the finished rows even if a size failed.
			if *format == "table" {
				return errors.Join(err, plans.WriteAssignTable(os.Stdout, rows))
			}
			return err
		}}
}
