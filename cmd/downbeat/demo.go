//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"downbeat.dev/bench/goodput"
	"downbeat.dev/bench/load"
	"downbeat.dev/deploy"
)

func demoCommand() command {
	return command{"demo", "serve the models in models/, send load, print the result", runDemo}
}

// The demo's load begins at a share of the executors' time, and falls until a probe shows that the
// machine holds it, with the generator and the scheduler on it as well.
const (
	demoShare  = 0.3
	probeSpan  = 2 * time.Second
	probeBad   = 1.0 // percent
	probeFall  = 0.6 // of the rate, after a probe that was worse
	probesMost = 5
)

func runDemo(ctx context.Context, args []string) error {
	span, rate := 20*time.Second, 0.0
	c, rest, err := deploy.Parse("demo", args, func(fs *flag.FlagSet) {
		fs.DurationVar(&span, "duration", span, "how long to send load")
		fs.Float64Var(&rate, "rate", 0, "requests per second; 0: as much as short probes show that the machine holds")
	})
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return fmt.Errorf("demo: unexpected %q: only flags are allowed", rest[0])
	case span <= 0 || span > time.Hour || !(rate >= 0 && rate <= 1e6):
		return fmt.Errorf("demo: duration %v, rate %v: want up to 1h and 0 to 1000000", span, rate)
	}
	if c.LogLevel == deploy.Default().LogLevel {
		c.LogLevel = "warn"
	}
	p, err := newParts(c, os.Stderr)
	if err != nil {
		return err
	}
	p.warnExposed("demo", "")
	err = p.demo(ctx, span, rate)
	return errors.Join(err, p.close())
}

// dodge takes free ports where the usual ones are in use.
func dodge(c *deploy.Config) {
	usual := deploy.Default()
	for _, a := range []*string{&c.HTTP, &c.GRPC} {
		if *a != usual.HTTP && *a != usual.GRPC {
			continue
		}
		ln, err := net.Listen("tcp", *a)
		if err != nil {
			*a = "127.0.0.1:0"
			continue
		}
		ln.Close()
	}
}

func (p *parts) demo(ctx context.Context, span time.Duration, rate float64) error {
	fmt.Printf("downbeat %s: scheduler, backend and gateway in this process, models from %s\n", buildVersion(), p.config.Models)
	began := time.Now()
	err := p.openScheduler("")
	if err == nil {
		err = p.openBackend(ctx, nil)
	}
	if err == nil {
		err = p.openClient(ctx)
	}
	if err == nil {
		dodge(&p.config) // now: another demo may have begun since
		err = p.openGateway(ctx)
	}
	if err != nil {
		return err
	}
	fmt.Printf("ready after %.1f s; the page: %s\n\n", time.Since(began).Seconds(), p.pageURL())
	f := loadFlags{shape: load.Shape{Arrivals: "poisson", Popularity: "even", Rate: rate, Span: span, Seed: 1}}
	if rate == 0 {
		if f.shape.Rate, err = p.probe(ctx, f); err != nil {
			return err
		}
	}
	o, err := f.options(p.client)
	if err != nil {
		return err
	}
	fmt.Printf("%d models, %.0f requests/s of rendered street scenes, Poisson, for %v:\n", len(o.Models), f.shape.Rate, span)
	r, err := p.sendLoad(ctx, o, f.shape.Seed)
	if err != nil {
		return err
	}
	r.Table(os.Stdout, p.batchMean)
	fmt.Println("\nThe same scheduler against 8 emulated GPUs in virtual time, deferring beside starting at once:")
	if err := goodput.Beside(ctx, os.Stdout); err != nil {
		return err
	}
	watched := terminal(os.Stdout)
	if watched && ctx.Err() == nil {
		fmt.Printf("\nstill serving: page %s, gRPC %s; Ctrl-C ends\n", p.pageURL(), p.config.GRPC)
	}
	fmt.Printf("demo: goodput=%.1f bad=%.2f p99=%.1f\n", r.Goodput(), r.BadPercent(), float64(r.Percentile(99).Microseconds())/1000)
	if watched {
		return p.wait(ctx)
	}
	return nil
}

// probe finds a rate that the machine holds: each probe runs at a lower rate than the one before.
func (p *parts) probe(ctx context.Context, f loadFlags) (float64, error) {
	f.shape.Rate, f.shape.Span = p.sustainable(demoShare), probeSpan
	for range probesMost {
		o, err := f.options(p.client)
		if err != nil {
			return 0, err
		}
		target, err := p.newTarget(o, f.shape.Seed)
		if err != nil {
			return 0, err
		}
		target.Do = p.client.Do // not to be seen on the page
		if load.Run(ctx, target, o).BadPercent() <= probeBad {
			break
		}
		f.shape.Rate *= probeFall
	}
	return f.shape.Rate, nil
}

// sustainable is the total rate, spread evenly over the models, that takes a share of the backend's
// executors when nothing is batched.
func (p *parts) sustainable(share float64) float64 {
	hello := p.backend.Hello()
	var each float64 // seconds of executor time that one request of each model takes
	for _, m := range hello.Models {
		each += time.Duration(m.Profile[0]).Seconds()
	}
	if each == 0 {
		return 1
	}
	return share * float64(len(hello.GPUs)) * float64(len(hello.Models)) / each
}

// batchMean is the mean batch size of a model since the scheduler started.
func (p *parts) batchMean(model string) float64 {
	for _, m := range p.engine.Stats().Models {
		if m.Name != model || m.Batches == 0 {
			continue
		}
		requests := uint64(0)
		for b, n := range m.Sizes {
			requests += uint64(b) * n
		}
		return float64(requests) / float64(m.Batches)
	}
	return 0
}
