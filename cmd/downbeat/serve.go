package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"downbeat.dev/deploy"
)

// part opens one room of a deployment in this process.
type part func(context.Context, *parts) error

func serveCommand() command {
	return runCommand("serve", "scheduler, backend and gateway in one process", nil,
		func(_ context.Context, p *parts) error { return p.openScheduler(p.config.Listen) },
		func(ctx context.Context, p *parts) error { return p.openBackend(ctx, nil) },
		func(ctx context.Context, p *parts) error { return p.openClient(ctx) },
		func(ctx context.Context, p *parts) error { return p.openGateway(ctx) })
}

func schedulerCommand() command {
	metrics := ""
	return runCommand("scheduler", "the scheduler alone, for backends and gateways to connect to",
		func(fs *flag.FlagSet) {
			fs.StringVar(&metrics, "metrics", "127.0.0.1:8002", "`address` for /metrics; empty: none")
		},
		func(_ context.Context, p *parts) error { return p.openScheduler(p.config.Listen) },
		func(_ context.Context, p *parts) error { return p.openMetrics(metrics) })
}

func gatewayCommand() command {
	return runCommand("gateway", "a gateway alone: REST and gRPC, for a scheduler", nil,
		func(ctx context.Context, p *parts) error { return p.openClient(ctx) },
		func(ctx context.Context, p *parts) error { return p.openGateway(ctx) })
}

// runCommand is a command that opens parts and runs until it is told to stop. extra registers flags
// of its own; nil: none.
func runCommand(name, summary string, extra func(*flag.FlagSet), open ...part) command {
	return command{name, summary, func(ctx context.Context, args []string) error {
		printConfig := false
		c, rest, err := deploy.Parse(name, args, func(fs *flag.FlagSet) {
			fs.BoolVar(&printConfig, "print-config", false, "print the configuration in force and exit")
			if extra != nil {
				extra(fs)
			}
		})
		if err != nil {
			return err
		}
		if len(rest) > 0 {
			return fmt.Errorf("%s: unexpected %q: only flags are allowed", name, rest[0])
		}
		if printConfig {
			fmt.Print(c.YAML())
			return nil
		}
		return runParts(ctx, c, os.Stderr, open)
	}}
}

// runParts opens the parts, waits for the end of ctx or for one that fails, and closes them.
func runParts(ctx context.Context, c deploy.Config, log io.Writer, open []part) error {
	p, err := newParts(c, log)
	if err != nil {
		return err
	}
	for _, f := range open {
		if err := f(ctx, p); err != nil {
			return errors.Join(err, p.close())
		}
	}
	err = p.wait(ctx)
	p.log.Info("stopping", "drain_max", drainMax)
	return errors.Join(err, p.close())
}
