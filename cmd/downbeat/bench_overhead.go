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

// benchOverhead measures the latency that the system adds to one request, beside a ping-pong over the same hops.
func benchOverhead() command {
	return command{name: "overhead", summary: "measure the latency that Downbeat adds to one request, beside a ping-pong over the same hops",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench overhead", flag.ContinueOnError)
			rounds := fs.Int("rounds", 60, "`number` of rounds; they alternate with the ping-pong's")
			each := fs.Int("each", 200, "`number` of requests per round")
			requests := fs.Int("requests", 320, "`number` of requests of each run against a whole serve process: by REST, gRPC and library, with GOMAXPROCS 1, 2 and 4")
			bytes := fs.Int("bytes", 4096, "size of a request's input, in `bytes`")
			provider := fs.String("provider", "", "data plane `provider` between the processes: shm, tcp or verbs; empty: the best that the host has")
			serve := fs.String("serve", "", "internal: be the scheduler, the backend or a hop, until stdin ends")
			next := fs.String("scheduler", "", "internal: address of the scheduler or the next hop")

			if err := parse(fs, args); err != nil {
				return err
			}

			// The parent has already checked a child's size.
			if min(*rounds, *each, *requests) < 1 || (*bytes < 1 || *bytes > 64<<20) && *serve == "" {
				return usageErrorf("bench overhead: want rounds, each and requests of at least 1, bytes 1 to 67108864")
			}
			if !slices.Contains([]string{"", "shm", "tcp", "verbs"}, *provider) {
				return usageErrorf("bench overhead: -provider %s: want shm, tcp or verbs", *provider)
			}

			// A child of this command is one part of the measured chain.
			if *serve != "" {
				return overhead.Serve(os.Stdin, os.Stdout, *serve, *next, *provider, *bytes)
			}

			// The parts run as processes of this binary, so that requests cross the same process borders as in a
			// deployment.
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

			// Measure the whole serve after the chain: it would take the chain's processors.
			whole, err := overhead.RunServe(ctx, overhead.ServeConfig{Command: []string{exe, "serve"}, Processors: []int{1, 2, 4}, Requests: *requests})
			if err != nil {
				return err
			}
			fmt.Println()
			return overhead.WriteServeTable(os.Stdout, whole)
		}}
}
