//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"

	"downbeat.dev/bench/overhead"
)

// benchOverhead measures what the system adds to one request, beside a ping-pong of the same hops.
func benchOverhead() command {
	return command{name: "overhead", summary: "what the system adds to one request, beside a ping-pong over the same hops",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench overhead", flag.ContinueOnError)
			rounds := fs.Int("rounds", 60, "rounds, alternating with the floor; short, so that neighbours disturb both alike")
			each := fs.Int("each", 200, "requests per round")
			requests := fs.Int("requests", 320, "requests of each run through a door of a whole serve: REST, gRPC and library, with GOMAXPROCS 1, 2 and 4")
			bytes := fs.Int("bytes", 4096, "input bytes of a request")
			provider := fs.String("provider", "", "data plane between the processes: shm, tcp or verbs; empty: the best there is")
			serve := fs.String("serve", "", "internal: be the scheduler, the backend or a hop, until stdin ends")
			next := fs.String("scheduler", "", "internal: where the scheduler, or the next hop, is")

			if err := parse(fs, args); err != nil {
				return err
			}

			// A child is told a size that its parent has checked.
			if min(*rounds, *each, *requests) < 1 || (*bytes < 1 || *bytes > 64<<20) && *serve == "" {
				return fmt.Errorf("bench overhead: want rounds, each and requests of at least 1, bytes 1 to 67108864")
			}
			if !slices.Contains([]string{"", "shm", "tcp", "verbs"}, *provider) {
				return fmt.Errorf("bench overhead: -provider %s: want shm, tcp or verbs", *provider)
			}

			// A child of this command is a part of the chain that is measured.
			if *serve != "" {
				return overhead.Serve(os.Stdin, os.Stdout, *serve, *next, *provider, *bytes)
			}

			// Parts run as processes of this binary, so that requests cross the same borders as in a deployment.
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			rows, err := overhead.Run(ctx, overhead.Config{Rounds: *rounds, Each: *each, Bytes: *bytes, Provider: *provider, Child: []string{exe, "bench", "overhead"}})
			if err != nil {
				return err
			}

			if err := overhead.WriteTable(os.Stdout, rows); err != nil {
				return err
			}

			// The whole serve comes after the chain: it would take the chain's processors.
			whole, err := overhead.RunServe(ctx, overhead.ServeConfig{Command: []string{exe, "serve"}, Processors: []int{1, 2, 4}, Requests: *requests})
			if err != nil {
				return err
			}
			fmt.Println()
			return overhead.WriteServeTable(os.Stdout, whole)
		}}
}
