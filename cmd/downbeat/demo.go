//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"downbeat.dev"
	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/load"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/sim"
	"downbeat.dev/deploy"
)

func demoCommand() command {
	return command{"demo", "serve the models in models/, send load and print the results", runDemo}
}

// The demo starts with a share of the executors' time and lowers the rate until a probe shows that the machine
// sustains it together with the generator and the scheduler.
const (
	demoShare  = 0.3
	probeSpan  = 2 * time.Second
	probeBad   = 1.0 // percent
	probeFall  = 0.6 // factor on the rate after a failed probe
	probesMost = 5
)

func runDemo(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "drift" {
		return runDemoDrift(ctx, args[1:])
	}
	span, rate, cameras := 20*time.Second, 0.0, -1
	c, rest, err := deploy.Parse("demo", args, func(fs *flag.FlagSet) {
		fs.DurationVar(&span, "duration", span, "how long to send load")
		fs.IntVar(&cameras, "cameras", -1, "`number` of camera sessions of the application traffic after the load; -1: 8, or none if -duration is below 10s")
		fs.Float64Var(&rate, "rate", 0, "`requests` per second; 0: find a rate that this host sustains, with short probes")
	})

	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usageErrorf("demo: unexpected %q: only flags are allowed", rest[0])
	case span <= 0 || span > time.Hour || !(rate >= 0 && rate <= 1e6):
		return usageErrorf("demo: duration %v, rate %v: want up to 1h and 0 to 1000000", span, rate)
	case cameras < -1 || cameras > camerasMost:
		return usageErrorf("demo: cameras %d: want -1 to %d", cameras, camerasMost)
	}

	if cameras == -1 {
		cameras = 0
		if span >= camerasNeed {
			cameras = camerasUsual
		}
	}

	// Log only warnings: the page and the printed table show the rest.
	if c.LogLevel == deploy.Default().LogLevel {
		c.LogLevel = "warn"
	}

	fmt.Printf("downbeat %s: scheduler, backend and gateway in this process, models from %s\n", buildVersion(), c.Models)
	began := time.Now()

	// The parts share this process and need no listener.
	c.Listen = ""
	memory := &deviceMemory{}
	s, err := downbeat.Start(ctx, downbeat.Config{Config: c, DeviceMemory: memory, Roles: downbeat.Scheduler | downbeat.Backend | downbeat.Gateway,
		FreePorts: true, Log: os.Stderr, Version: buildVersion(), SessionTrial: sim.Trial})
	if err != nil {
		return err
	}
	fmt.Printf("ready after %.1f s; the page: %s\n\n", time.Since(began).Seconds(), s.PageURL())

	return errors.Join(showLoad(ctx, s, span, rate, cameras), s.Close(), memory.Close())
}

// showLoad sends load to the system and prints the results.
func showLoad(ctx context.Context, s *downbeat.System, span time.Duration, rate float64, cameras int) error {
	var err error
	f := loadFlags{shape: arrivals.Shape{Arrivals: "poisson", Popularity: "even", Rate: rate, Span: span, Seed: 1}}
	if rate == 0 {
		if f.shape.Rate, err = findRate(ctx, s, f); err != nil {
			return err
		}
	}

	o, err := f.options(s.Client())
	if err != nil {
		return err
	}
	fmt.Printf("%d models, %.0f requests/s of rendered street scenes, Poisson, for %v:\n", len(o.Models), f.shape.Rate, span)
	r, err := sendLoad(ctx, s, o, f.shape.Seed)
	if err != nil {
		return err
	}

	r.Table(os.Stdout, func(model string) float64 { return meanBatch(s.BatchSizes(model), nil) })

	if err := showRamp(ctx, s); err != nil {
		return err
	}

	fmt.Println("\nThe same scheduler on 8 emulated GPUs in virtual time, deferred batching beside starting at once:")
	if err := goodput.Beside(ctx, os.Stdout); err != nil {
		return err
	}

	if set := s.Applications(); set != nil && set.App("traffic") != nil && cameras > 0 {
		if err := showCameras(ctx, os.Stdout, set.App("traffic"), cameras); err != nil {
			return err
		}
	}

	// Without a terminal nobody can press Ctrl-C, so the demo ends by itself.
	watched := isTerminal(os.Stdout)
	if watched && ctx.Err() == nil {
		fmt.Printf("\nstill serving: page %s, gRPC %s; Ctrl-C ends\n", s.PageURL(), s.Config().GRPC)
	}

	fmt.Printf("demo: goodput=%.1f bad=%.2f p99=%.1f\n", r.Goodput(), r.BadPercent(), float64(r.Percentile(99).Microseconds())/1000)
	if watched {
		return s.Wait(ctx)
	}
	return nil
}

// findRate finds a rate that the machine sustains. Each probe runs at a lower rate than the previous one.
func findRate(ctx context.Context, s *downbeat.System, f loadFlags) (float64, error) {
	f.shape.Rate, f.shape.Span = sustainableRate(s, demoShare), probeSpan
	for range probesMost {
		o, err := f.options(s.Client())
		if err != nil {
			return 0, err
		}

		target, err := newTarget(s, o, f.shape.Seed)
		if err != nil {
			return 0, err
		}
		target.Do = s.Client().Do // keep the probes off the page

		// Take the first rate that a short probe sustains.
		if load.Run(ctx, target, o).BadPercent() <= probeBad {
			break
		}
		f.shape.Rate *= probeFall
	}
	return f.shape.Rate, nil
}

// sustainableRate returns the total rate, in requests/s spread evenly over the models, that takes a share of the
// executors' time without batching.
func sustainableRate(s *downbeat.System, share float64) float64 {
	hello := s.Backend().Hello()
	var each float64 // seconds of executor time for one request of every model
	for _, m := range hello.Models {
		each += time.Duration(m.Profile[0]).Seconds()
	}

	// Empty profiles would mean a division by zero.
	if each == 0 {
		return 1
	}
	return share * float64(len(hello.GPUs)) * float64(len(hello.Models)) / each
}

// meanBatch returns the mean size of the batches since an earlier count by size; with before nil, of all batches.
func meanBatch(sizes, before []uint64) float64 {
	requests, batches := uint64(0), uint64(0)
	for b, n := range sizes {
		if b < len(before) {
			n -= before[b]
		}
		requests, batches = requests+uint64(b)*n, batches+n
	}

	// A model without requests has no batches.
	if batches == 0 {
		return 0
	}
	return float64(requests) / float64(batches)
}
