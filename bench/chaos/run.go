//go:build linux

package chaos

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"downbeat.dev/bench/chaos/account"
	"downbeat.dev/bench/median"
)

// Options are the options of a run.
type Options struct {
	Binary   string         // bin/downbeat
	Caller   []string       // command line of a caller's process, without its configuration
	Only     *regexp.Regexp // names of experiments; nil: all, or those of the short form
	Short    bool
	Repeats  int
	Seed     uint64
	Limit    time.Duration // start no experiment after it; 0: none
	Loopback bool          // no separate hosts; Run sets it if there cannot be any
	Progress io.Writer     // nil: none
	Logs     string        // directory for the logs of all processes; empty: discard them
}

// lateSlack is how much later than the grace a request may end if this machine's timers are exact. The delay of the
// caller's own timers is added, plus twice that for the goroutines behind them.
const lateSlack = 50 * time.Millisecond

// Result is the combined result of one experiment's trials. Times are milliseconds.
type Result struct {
	Experiment  string         `json:"experiment"`
	Promise     string         `json:"promise"`
	Repeats     int            `json:"repeats"`
	Seed        uint64         `json:"seed"`
	Sent        int            `json:"sent"`
	Good        int            `json:"good"`
	Unaccounted int            `json:"unaccounted"`
	Wrong       int            `json:"wrong"`
	LateMax     float64        `json:"late_max_ms"`
	NoiseMax    float64        `json:"noise_max_ms"` // delay of the callers' own timers
	Recover     *float64       `json:"recover_p99_ms"`
	Measures    []Sample       `json:"measures"`
	Reasons     map[string]int `json:"reasons"`
	Missed      []string       `json:"missed"` // missed bars
	Skipped     string         `json:"skipped,omitempty"`
	Broken      string         `json:"broken,omitempty"` // error that kept a trial from running
}

// Sample is a measure over all trials.
type Sample struct {
	Name   string    `json:"name"`
	Values []float64 `json:"values"`
	Median float64   `json:"median"`
	Bar    float64   `json:"bar"`
	AtMost bool      `json:"at_most"`
}

// Check returns an error if no experiment has a name that o.Only matches. Without it a misspelled name would pass as a
// run without failures.
func (o Options) Check() error {
	if len(o.experiments()) == 0 {
		return fmt.Errorf("no experiment is called %v; the experiments are %s", o.Only, strings.Join(experimentNames(), ", "))
	}
	return nil
}

// experiments returns the experiments that o selects.
func (o Options) experiments() (chosen []Experiment) {
	for _, e := range Experiments() {
		switch {
		case o.Only != nil && o.Only.MatchString(e.Name), o.Only == nil && !e.Long && (e.Short || !o.Short):
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// Run runs the experiments that o selects, one after another, and calls tell with each result.
func Run(ctx context.Context, o Options, tell func(Result)) error {
	if err := o.Check(); err != nil {
		return err
	}

	// Experiments that harm packets need network namespaces; without them they are skipped with this reason.
	why := usable()
	o.Loopback = o.Loopback || why != nil

	start := time.Now()
	for _, e := range o.experiments() {
		r := Result{Experiment: e.Name, Promise: e.Promise, Seed: o.Seed, Reasons: map[string]int{}}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case e.Packets && o.Loopback:
			r.Skipped = fmt.Sprint("no hosts of their own: ", why)
		case o.Limit > 0 && time.Since(start) > o.Limit:
			r.Skipped = "the time limit was reached"
		default:
			r.runTrials(ctx, e, o)
		}
		tell(r)
	}

	return nil
}

func experimentNames() (names []string) {
	for _, e := range Experiments() {
		names = append(names, e.Name)
	}
	return names
}

// runTrials runs the trials of one experiment and combines them.
func (r *Result) runTrials(ctx context.Context, e Experiment, o Options) {
	var trials []Trial
	for i := range o.Repeats {
		if ctx.Err() != nil {
			break
		}

		// A trial that could not run says nothing about the promise.
		t, err := runTrial(e, o, o.Seed+uint64(i))
		if err != nil {
			r.Broken = err.Error()
			continue
		}
		trials = append(trials, t)
		if o.Progress != nil {
			fmt.Fprintf(o.Progress, "%s, seed %d: %+v %+v\n", e.Name, t.Seed, t.Sum, t.Observation)
		}
	}
	r.addUp(trials)
}

// addUp judges the trials: violations of safety count in every trial, measures by their median.
func (r *Result) addUp(trials []Trial) {
	var recoveries []time.Duration

	r.Repeats = len(trials)
	for _, t := range trials {
		s := t.Sum
		r.Sent, r.Good, r.Unaccounted, r.Wrong = r.Sent+s.Sent, r.Good+s.Good, r.Unaccounted+s.Unaccounted, r.Wrong+s.Wrong
		r.LateMax, r.NoiseMax = max(r.LateMax, toMilliseconds(s.LateMax)), max(r.NoiseMax, toMilliseconds(s.NoiseMax))
		for reason, n := range s.Reasons {
			r.Reasons[reason] += n
		}
		// Late timers on this machine delay a request and the goroutines behind it: see lateSlack.
		if s.LateMax > account.Grace+lateSlack+3*s.NoiseMax {
			r.Missed = append(r.Missed, fmt.Sprintf("ended %v after its deadline, timers were %v late", s.LateMax, s.NoiseMax))
		}

		recoveries = append(recoveries, t.Observation.Recoveries...)
		// Every trial of an experiment measures the same things in the same order.
		for i, m := range t.Observation.Measures {
			if i == len(r.Measures) {
				r.Measures = append(r.Measures, Sample{Name: m.Name, Bar: m.Bar, AtMost: m.AtMost})
			}
			r.Measures[i].Values = append(r.Measures[i].Values, m.Value)
		}
	}

	// Safety has no median: one unaccounted or wrong answer in any trial misses the bar.
	if r.Unaccounted > 0 {
		r.Missed = append(r.Missed, fmt.Sprintf("%d unaccounted", r.Unaccounted))
	}
	if r.Wrong > 0 {
		r.Missed = append(r.Missed, fmt.Sprintf("%d wrong", r.Wrong))
	}
	// Judge performance by the median, since single trials share the machine with other work.
	for i := range r.Measures {
		m := &r.Measures[i]
		m.Median = median.Of(m.Values)
		if bar := (Measure{m.Name, m.Median, m.Bar, m.AtMost}); !bar.met(m.Median) {
			r.Missed = append(r.Missed, fmt.Sprintf("%s: %.4g, bar %.4g", m.Name, m.Median, m.Bar))
		}
	}

	if len(recoveries) > 0 {
		p99 := toMilliseconds(median.Percentile(recoveries, 99))
		r.Recover = &p99
	}
}

// Passed reports whether every bar was met.
func (r Result) Passed() bool { return len(r.Missed) == 0 && r.Broken == "" }
