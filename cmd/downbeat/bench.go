package main

import (
	"context"
	"fmt"
	"io"
	"strings"
)

func benchCommand() command {
	return command{name: "bench", summary: "measure Downbeat and compare it with other systems, in virtual time or on this host",
		run: func(ctx context.Context, args []string) error {
			// Each benchmark parses its own flags, so the remaining arguments are passed on.
			return runNamed(ctx, "downbeat bench", benches(), args, func(w io.Writer) {
				fmt.Fprint(w, usageOf("downbeat bench"))
				printCommands(w, benches())
			})
		}}
}

// policiesHelp explains the flag -policy of a benchmark. It lists every policy, because a user can only guess a name
// otherwise.
func policiesHelp[P any](every []P, nameOf func(P) string) string {
	var names []string
	for _, p := range every {
		names = append(names, nameOf(p))
	}
	return "`policies`, separated by commas, or all: " + strings.Join(names, ", ")
}
