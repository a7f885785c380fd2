package main

import (
	"context"
	"fmt"
	"io"
)

// planCommand returns the planning commands.
func planCommand() command {
	return command{name: "plan", summary: "plan how many GPUs models need and which GPUs hold which models: size, show, dry-run, apply, rollback",
		run: func(ctx context.Context, args []string) error {
			return runNamed(ctx, "downbeat plan", planners(), args, func(w io.Writer) {
				fmt.Fprint(w, usageOf("downbeat plan"))
				printCommands(w, planners())
			})
		}}
}

func planners() []command { return append([]command{planSize()}, livePlanners()...) }
