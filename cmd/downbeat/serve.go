//go:build linux

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
	return runCommand("serve", "scheduler, backend and gateway in one process", "", nil,
		func(_ context.Context, p *parts) error { return p.openScheduler(p.config.Listen) },
		func(ctx context.Context, p *parts) error { return p.openBackend(ctx, nil) },
		func(ctx context.Context, p *parts) error { return p.openClient(ctx) },
		func(ctx context.Context, p *parts) error { return p.openGateway(ctx) })
}

func schedulerCommand() command {
	return runCommand("scheduler", "the scheduler alone, for backends and gateways to connect to", "127.0.0.1:8002", nil,
		func(_ context.Context, p *parts) error { return p.openScheduler(p.config.Listen) })
}

func gatewayCommand() command {
	return runCommand("gateway", "a gateway alone: REST and gRPC, for a scheduler", "", nil,
		func(ctx context.Context, p *parts) error { return p.openClient(ctx) },
		func(ctx context.Context, p *parts) error { return p.openGateway(ctx) })
}

// runCommand is a command that opens parts and runs until it is told to stop, with metrics on an
// address of their own (the default; a flag sets it). extra registers flags of its own; nil: none.
func runCommand(name, summary, metrics string, extra func(*flag.FlagSet), open ...part) command {
	return command{name, summary, func(ctx context.Context, args []string) error {
		printConfig, aside := false, ""
		c, rest, err := deploy.Parse(name, args, func(fs *flag.FlagSet) {
			fs.BoolVar(&printConfig, "print-config", false, "print the configuration in force and exit")
			fs.StringVar(&aside, "metrics", metrics, "`address` for /metrics, /v2/health and /debug/pprof alone; empty: none")
			if extra != nil {
				extra(fs)
			}
		})
		if err != nil {
			return err
		}
		if len(rest) > 0 {
			return deploy.UsageError(fmt.Sprintf("%s: unexpected %q: only flags are allowed", name, rest[0]))
		}
		if printConfig {
			fmt.Print(c.YAML())
			return nil
		}
		return runParts(ctx, name, c, os.Stderr, aside, open)
	}}
}

// runParts opens the parts, waits for the end of ctx or for one that fails, and closes them.
func runParts(ctx context.Context, name string, c deploy.Config, log io.Writer, aside string, open []part) error {
	p, err := newParts(c, log)
	if err != nil {
		return err
	}
	p.patient = true
	p.warnExposed(name, aside)
	if err := p.openAside(aside); err != nil {
		return errors.Join(err, p.close())
	}
	for _, f := range open {
		if err := f(ctx, p); err != nil {
			return errors.Join(err, p.close())
		}
	}
	p.settle()
	err = p.wait(ctx)
	p.log.Info("stopping", "drain_max", drainMax)
	return errors.Join(err, p.close())
}
