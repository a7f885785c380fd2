//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"downbeat.dev/deploy"
)

func rollbackCommand() command {
	return command{"rollback", "serve earlier weights of a learning model again: MODEL VERSION", runRollback}
}

func runRollback(ctx context.Context, args []string) error {
	c, rest, err := deploy.Parse("rollback", args, func(fs *flag.FlagSet) {
		fs.Usage = func() {
			fmt.Fprintf(fs.Output(), "Usage: downbeat rollback [flags] MODEL VERSION\n\n")
			fs.PrintDefaults()
		}
	})
	switch {
	case err != nil:
		return err
	case len(rest) != 2:
		return usageErrorf("rollback: want a model and a version: downbeat rollback [flags] MODEL VERSION")
	}

	if c.LogLevel == deploy.Default().LogLevel {
		c.LogLevel = "warn" // the command prints one line; it needs no service log
	}

	s, err := startClient(ctx, c)
	if err != nil {
		return err
	}

	// A client starts before any backend has announced its models.
	awaitModels(ctx, s)
	if err := s.Client().RollBack(ctx, rest[0], rest[1]); err != nil {
		return errors.Join(fmt.Errorf("rollback: %w", err), s.Close())
	}
	fmt.Printf("the weights of version %s of %s serve again, under a new number, until the learner finds better ones for another drift\n", rest[1], rest[0])
	return s.Close()
}
