//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"downbeat.dev"
	"downbeat.dev/bench/load"
	"downbeat.dev/core/arrivals"
	"downbeat.dev/deploy"
	"downbeat.dev/frontend"
)

// loadFlags are the flags of load beyond the configuration.
type loadFlags struct {
	shape  arrivals.Shape
	models string
	trace  string
	report string
	slo    time.Duration
}

func loadCommand() command {
	return command{"load", "send load to a scheduler at a given rate and account for every request", runLoad}
}

func runLoad(ctx context.Context, args []string) error {
	var f loadFlags
	c, rest, err := deploy.Parse("load", args, func(fs *flag.FlagSet) {
		fs.StringVar(&f.models, "model", "", "`names` of the models, separated by commas; empty: all models that are ready")
		fs.Float64Var(&f.shape.Rate, "rate", 100, "`requests` per second, all models together")
		fs.DurationVar(&f.shape.Span, "duration", 10*time.Second, "how long to send load")
		fs.StringVar(&f.shape.Arrivals, "arrivals", "poisson", "arrival `process`: poisson, constant, or gamma:SHAPE (a smaller SHAPE is burstier)")
		fs.StringVar(&f.shape.Popularity, "popularity", "even", "`distribution` of the requests over the models: even, or zipf:EXPONENT")
		fs.Uint64Var(&f.shape.Seed, "seed", 1, "seed of the arrivals and the inputs")
		fs.StringVar(&f.trace, "trace", "", "`file` with the arrivals, one line arrival_us,model each; empty: draw arrivals")
		fs.StringVar(&f.report, "report", "", "`file` for a page with plots, such as load.html; empty: none")
		fs.DurationVar(&f.slo, "slo", 0, "time from a request's arrival to its deadline; 0: the model's SLO")
	})

	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usageErrorf("load: unexpected %q: only flags are allowed", rest[0])
	case f.slo < 0 || f.slo > time.Hour:
		return usageErrorf("load: slo: %v: want 0 to 1h", f.slo)
	}
	if err := f.checkFlags(); err != nil {
		return err
	}

	if c.LogLevel == deploy.Default().LogLevel {
		c.LogLevel = "warn" // keep the log quiet: the report is the output
	}

	// Fail before minutes of load, not after.
	if err := f.checkReport(); err != nil {
		return err
	}

	s, err := startClient(ctx, c)
	if err != nil {
		return err
	}

	awaitModels(ctx, s)
	o, err := f.options(s.Client())
	if err != nil {
		return errors.Join(err, s.Close())
	}

	// Close the client in every case, so that the scheduler forgets it at once.
	r, err := sendLoad(ctx, s, o, f.shape.Seed)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	r.Table(os.Stdout, nil)
	fmt.Printf("load: goodput=%.1f bad=%.2f p99=%.1f\n", r.Goodput(), r.BadPercent(), float64(r.Percentile(99).Microseconds())/1000)
	return errors.Join(f.writeReport(r, c.Scheduler), s.Close())
}

// checkReport reports whether the page for -report can be written.
func (f *loadFlags) checkReport() error {
	if err := checkWritable(f.report); err != nil {
		return fmt.Errorf("load: report: %w", err)
	}
	return nil
}

// checkWritable returns an error if a file cannot be written, before the work that makes its content. An empty name
// means no file. An existing file keeps its content, and a new one is removed again.
func checkWritable(name string) error {
	if name == "" {
		return nil
	}

	_, missing := os.Stat(name)
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	file.Close()
	if missing != nil {
		os.Remove(name)
	}
	return nil
}

// writeReport writes the page for -report, with all parameters needed to repeat the run.
func (f *loadFlags) writeReport(r *load.Report, scheduler string) error {
	if f.report == "" {
		return nil
	}
	file, err := os.Create(f.report)
	if err != nil {
		return fmt.Errorf("load: report: %w", err)
	}

	facts := []string{"scheduler", scheduler, "seed", fmt.Sprint(f.shape.Seed)}
	if f.trace != "" {
		facts = append(facts, "trace", f.trace)
	} else {
		facts = append(facts, "arrivals", f.shape.Arrivals, "popularity", f.shape.Popularity, "rate", fmt.Sprintf("%g requests/s", f.shape.Rate), "duration", f.shape.Span.String())
	}
	facts = append(facts, "version", buildVersion(), "at", time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(r.WritePage(file, facts...), file.Close()); err != nil {
		return fmt.Errorf("load: report %s: %w", f.report, err)
	}
	return nil
}

// startClient connects a client to a scheduler in another process.
func startClient(ctx context.Context, c deploy.Config) (*downbeat.System, error) {
	return downbeat.Start(ctx, downbeat.Config{Config: c, Roles: downbeat.Client, Log: os.Stderr})
}

// checkFlags checks the flags that can be checked without a scheduler.
func (f *loadFlags) checkFlags() error {
	if !(f.shape.Rate > 0 && f.shape.Rate <= 1e6) || f.shape.Span <= 0 || f.shape.Span > 24*time.Hour {
		return usageErrorf("load: rate %v, duration %v: want above 0 to 1000000, and above 0 to 24h", f.shape.Rate, f.shape.Span)
	}

	// A plan of one second reveals errors in the shape without generating millions of arrivals.
	short := f.shape
	short.Rate, short.Span = 1, time.Second
	if _, err := short.Plan(1); err != nil {
		return usageErrorf("load: %v", err)
	}
	return nil
}

// options returns the models and the plan of the load.
func (f *loadFlags) options(client *frontend.Client) (load.Options, error) {
	var o load.Options
	names := strings.FieldsFunc(f.models, func(r rune) bool { return r == ',' })
	if len(names) == 0 {
		// Leave out models whose input has no fixed size: the generator cannot choose one.
		for _, m := range client.Models() {
			if m.Ready && m.InputBytes >= 0 {
				names = append(names, m.Name)
			}
		}
	}

	if f.trace != "" {
		file, err := os.Open(f.trace)
		if err != nil {
			return o, err
		}
		defer file.Close()
		if o.Plan, names, err = arrivals.ReadTrace(file); err != nil {
			return o, fmt.Errorf("trace %s: %w", f.trace, err)
		}
	}

	if len(names) == 0 {
		return o, errors.New("load: the scheduler has no ready model")
	}

	// Look up every model now, so that an unknown name fails before any load is sent.
	for _, name := range names {
		m := client.Model(name, "")
		if m == nil {
			return o, fmt.Errorf("load: model %q: the scheduler does not serve it", name)
		}

		slo := m.Deadline()
		if f.slo > 0 {
			slo = f.slo
		}
		o.Models = append(o.Models, load.Model{Name: name, SLO: slo})
	}

	if f.trace != "" {
		return o, nil
	}
	var err error
	o.Plan, err = f.shape.Plan(len(names))
	return o, err
}

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// newTarget prepares inputs for the plan's models. If this process has a gateway, the requests go through it.
func newTarget(s *downbeat.System, o load.Options, seed uint64) (*load.Client, error) {
	names := make([]string, len(o.Models))
	for i, m := range o.Models {
		names[i] = m.Name
	}
	t, err := load.NewClient(s.Client(), names, seed)
	// Send through this process's gateway, so that its page shows the requests.
	if err == nil && s.Gateway() != nil {
		t.Do = s.Gateway().Do
	}
	return t, err
}

// sendLoad runs a plan through the frontend library. It prints progress to standard error.
func sendLoad(ctx context.Context, s *downbeat.System, o load.Options, seed uint64) (*load.Report, error) {
	target, err := newTarget(s, o, seed)
	if err != nil {
		return nil, err
	}

	o.Classify = load.Classify
	span := time.Second
	if n := len(o.Plan); n > 0 {
		span = o.Plan[n-1].At.Round(time.Second)
	}

	// A terminal gets one line that is overwritten; a log gets a line every five seconds.
	watched := isTerminal(os.Stderr)
	o.Progress = func(at time.Duration, sent, ended, good int64) {
		line := fmt.Sprintf("%3.0f of %.0f s: sent %d, ended %d, in time %d", at.Seconds(), span.Seconds(), sent, ended, good)
		switch {
		case watched:
			fmt.Fprintf(os.Stderr, "\r%s ", line)
		case int(at.Seconds())%5 == 0:
			fmt.Fprintln(os.Stderr, line)
		}
	}

	r := load.Run(ctx, target, o)
	if watched {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}

	// The correct answer is known only for rendered pictures.
	if right, judged := target.Right(); judged > 0 {
		fmt.Printf("%.1f %% of %d classifications were right\n", 100*float64(right)/float64(judged), judged)
	}
	return r, nil
}
