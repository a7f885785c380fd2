//go:build !linux

package main

import (
	"context"
	"fmt"
)

// commands returns the commands of systems other than Linux: benchmarks that need no data plane.
func commands() []command {
	// Virtual time needs no Linux. The other commands are listed too, and fail with the reason.
	all := []command{planCommand(), benchCommand(), versionCommand()}
	for _, name := range []string{"demo", "serve", "scheduler", "backend", "gateway", "infer", "rollback", "explain", "sessions", "load", "check", "net", "chaos", "profile", "models", "canary"} {
		all = append(all, onLinux(name))
	}
	return all
}

// benches returns the benchmarks, each a command under "downbeat bench".
func benches() []command {
	return []command{benchGoodput(), benchSchedule(), benchPlan(), benchAccuracy(), benchFigure(), benchFigures(), benchScale(), benchReconfigure(), benchPrepare(), benchSessions(), benchSpare(), benchDrift(), benchJoint(), benchDispatch(), onLinux("overhead"), onLinux("gateway"), onLinux("transfer"), onLinux("failover"), onLinux("gpu")}
}

// livePlanners returns nothing: its commands need a running scheduler, which needs Linux.
func livePlanners() []command { return nil }

func onLinux(name string) command {
	return command{name, "(needs Linux)", func(context.Context, []string) error {
		return fmt.Errorf("%s needs Linux: the data plane stands on epoll and memfd", name)
	}}
}

const footer = `
Start here:
  downbeat bench goodput               compare the scheduler with published ones, in virtual time
`
