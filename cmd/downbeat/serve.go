//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"downbeat.dev"
	"downbeat.dev/core/sim"
	"downbeat.dev/deploy"
)

func serveCommand() command {
	return runCommand("serve", "run scheduler, backend and gateway in one process", "", downbeat.Scheduler|downbeat.Backend|downbeat.Gateway, nil, nil)
}

func schedulerCommand() command {
	return runCommand("scheduler", "run a scheduler, to which backends and gateways connect", "127.0.0.1:8002", downbeat.Scheduler, nil, joinElection)
}

func gatewayCommand() command {
	return runCommand("gateway", "run a gateway for a scheduler: REST and gRPC", "", downbeat.Gateway, nil, nil)
}

// runCommand returns a command that starts the parts of some roles and runs until it is interrupted. metrics is the
// default of the -metrics flag. extra registers further flags and complete copies them into the configuration; both
// may be nil.
func runCommand(name, summary, metrics string, roles downbeat.Role, extra func(*flag.FlagSet), complete func(*downbeat.Config) error) command {
	return command{name, summary, func(ctx context.Context, args []string) error {
		// Patient: the parts of a deployment may start in any order, so each waits for the others.
		printConfig, c := false, downbeat.Config{Roles: roles, Patient: true, Log: os.Stderr, Version: buildVersion(), SessionTrial: sim.Trial}
		knobs, rest, err := deploy.Parse(name, args, func(fs *flag.FlagSet) {
			fs.BoolVar(&printConfig, "print-config", false, "print the configuration in force and exit")
			fs.StringVar(&c.Metrics, "metrics", metrics, "separate `address` for /metrics, /v2/health and /debug/pprof; empty: none")
			if extra != nil {
				extra(fs)
			}
		})

		if err != nil {
			return err
		}
		if len(rest) > 0 {
			return usageErrorf("%s: unexpected %q: only flags are allowed", name, rest[0])
		}
		c.Config = knobs
		if err := c.CheckListener("metrics", c.Metrics); c.Metrics != "" && err != nil {
			return usageErrorf("%v", err)
		}

		// All flags and files have been read, and nothing has been started.
		if printConfig {
			fmt.Print(c.YAML())
			return nil
		}

		if complete != nil {
			if err := complete(&c); err != nil {
				return err
			}
		}
		return runSystem(ctx, c)
	}}
}

// runSystem starts the configured parts, waits until ctx ends or a part fails, and closes the system.
func runSystem(ctx context.Context, c downbeat.Config) error {
	memory := &deviceMemory{}
	c.DeviceMemory = memory
	s, err := downbeat.Start(ctx, c)
	if err != nil {
		return err
	}

	// Close drains: accepted requests are still answered, for at most DrainMax.
	err = s.Wait(ctx)
	s.Log().Info("stopping", "drain_max", downbeat.DrainMax)
	return errors.Join(err, s.Close(), memory.Close())
}
