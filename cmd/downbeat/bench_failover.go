//go:build linux

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"downbeat.dev/bench/failover"
)

// benchFailover measures the cost of losing the leading scheduler.
func benchFailover() command {
	return command{name: "failover", summary: "kill the leading scheduler (kill -9) again and again: time until goodput recovers, and requests lost",
		run: func(ctx context.Context, args []string) error {
			var c failover.Config
			fs := flag.NewFlagSet("downbeat bench failover", flag.ContinueOnError)
			fs.IntVar(&c.Kills, "kills", 50, "`number` of leaders to kill")
			fs.Float64Var(&c.Share, "share", 0.5, "offered load, as a `share` of the GPUs' capacity")
			fs.DurationVar(&c.SLO, "slo", 100*time.Millisecond, "deadline of the requests that count for goodput")
			fs.DurationVar(&c.Outlast, "outlast", time.Second, "deadline of a tenth of the requests; none of these may be lost")
			fs.DurationVar(&c.Pause, "pause", 2*time.Second, "time between a change of leader and the next kill")
			fs.StringVar(&c.Election, "election", "", "`URL` of the election, as for downbeat scheduler -election; empty: a temporary file")
			fs.Uint64Var(&c.Seed, "seed", 1, "seed of the arrivals")
			format := fs.String("o", "table", "output `format`: table or json")

			if err := parse(fs, args); err != nil {
				return err
			}
			if err := checkFormat(*format); err != nil {
				return err
			}
			if err := c.Check(); err != nil {
				return usageErrorf("bench failover: %v", err)
			}

			// The parts run as further processes of this binary.
			var err error
			if c.Child, err = os.Executable(); err != nil {
				return err
			}

			r, err := failover.Run(ctx, c)
			if err != nil {
				return fmt.Errorf("bench failover: %w", err)
			}

			if *format == "json" {
				return json.NewEncoder(os.Stdout).Encode(r)
			}
			return r.WriteTable(os.Stdout)
		}}
}
