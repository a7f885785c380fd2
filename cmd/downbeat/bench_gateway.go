//go:build linux

package main

import (
	"context"
	"flag"
	"os"
	"time"

	"downbeat.dev/bench/gateway"
)

// benchGateway measures the gateway beside bare net/http and grpc-go servers.
func benchGateway() command {
	return command{name: "gateway", summary: "measure REST and gRPC calls per second of the gateway with a model that computes nothing, beside bare net/http and grpc-go",
		run: func(ctx context.Context, args []string) error {
			fs := flag.NewFlagSet("downbeat bench gateway", flag.ContinueOnError)
			c := gateway.Config{}
			fs.IntVar(&c.Callers, "callers", 64, "`number` of concurrent callers; each waits for an answer before the next call")
			fs.IntVar(&c.Conns, "conns", 4, "`number` of gRPC connections that the callers share")
			fs.IntVar(&c.Rounds, "rounds", 10, "`number` of rounds; they alternate with the bare servers'")
			fs.DurationVar(&c.Each, "each", time.Second, "length of a round")
			fs.IntVar(&c.Input, "input", 4096, "size of a request's tensor, in `bytes`")
			fs.IntVar(&c.Output, "output", 64, "size of a response's tensor, in `bytes`")
			fs.BoolVar(&c.Shared, "shared", false, "compare tensors in shared memory with tensors in messages")
			fs.BoolVar(&c.Traced, "traced", false, "compare a gateway that traces 1 % of its calls with one that traces none")

			pictures := fs.Int("pictures", 0, "`number` of pictures to send, as files and as tensors; 0: compare with bare servers")

			if err := parse(fs, args); err != nil {
				return err
			}
			if *pictures < 0 || *pictures > 100_000 {
				return usageErrorf("bench gateway: -pictures %d: want 0 to 100000", *pictures)
			}
			if *pictures > 0 {
				rows, err := gateway.RunPictures(ctx, *pictures)
				if err != nil {
					return err
				}
				return gateway.WritePictures(os.Stdout, rows)
			}

			// The bounds keep a mistyped number from exhausting the host's memory or file descriptors.
			if min(c.Callers, c.Conns, c.Rounds, c.Input, c.Output) < 1 || c.Callers > 10_000 || c.Conns > 1000 || max(c.Input, c.Output) > 64<<20 || c.Each <= 0 || c.Shared && c.Traced {
				return usageErrorf("bench gateway: want callers 1 to 10000, conns 1 to 1000, input and output 1 to 67108864, rounds and each above 0, and not both -shared and -traced")
			}

			rows, err := gateway.Run(ctx, c)
			if err != nil {
				return err
			}
			return c.WriteTable(os.Stdout, rows)
		}}
}
