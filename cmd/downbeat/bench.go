package main

import (
	"context"
	"fmt"
	"io"
)

func benchCommand() command {
	return command{name: "bench", summary: "measure: goodput, schedule, plan, accuracy, figure, sessions, spare, drift, joint, figures, scale, reconfigure, prepare, dispatch, overhead, gateway, transfer, failover, gpu",
		run: func(ctx context.Context, args []string) error {
			// Each benchmark parses its own flags, so the remaining arguments are passed on.
			return runNamed(ctx, "downbeat bench", benches(), args, func(w io.Writer) {
				fmt.Fprintln(w, "Usage: downbeat bench WHAT [flags]")
				list(w, benches())
			})
		}}
}
