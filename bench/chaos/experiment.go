//go:build linux

package chaos

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/bench/chaos/account"
	"downbeat.dev/bench/chaos/lan"
)

// Experiment is a promise and the test of it.
type Experiment struct {
	Name    string
	Promise string
	Short   bool // part of the short form
	Long    bool // runs only if named
	Packets bool // harms packets: needs separate hosts
	Run     func(*World) Observation
}

// Observation is the result of one trial, beside the ledger's.
type Observation struct {
	Measures   []Measure
	Recoveries []time.Duration // from a fault, or its end, until goodput recovered
	Lost       map[string]int  // reasons of the lost requests that a measure counts
}

// Measure is one number with its bar.
type Measure struct {
	Name   string
	Value  float64
	Bar    float64
	AtMost bool // the bar is an upper one
}

func atLeast(name string, value, bar float64) Measure { return Measure{name, value, bar, false} }
func atMost(name string, value, bar float64) Measure  { return Measure{name, value, bar, true} }

// met reports whether a value meets the bar.
func (m Measure) met(value float64) bool {
	if m.AtMost {
		return value <= m.Bar
	}
	return value >= m.Bar
}

// countLost counts a caller's requests since a time without a right output in time, and notes the reasons.
func (o *Observation) countLost(c *Caller, from int64) float64 {
	if o.Lost == nil {
		o.Lost = map[string]int{}
	}

	n := 0
	for why, times := range c.world.Ledger.Reasons(c.number, from, now()) {
		o.Lost[why] += times
		n += times
	}
	return float64(n)
}

// recovered notes how long after a time a caller's goodput recovered; if it never did, the time until now.
func (o *Observation) recovered(c *Caller, from int64) time.Duration {
	d, ok := c.world.Ledger.Recovery(c.number, from)
	if !ok {
		d = time.Duration(account.Now() - from)
	}
	o.Recoveries = append(o.Recoveries, d)
	return d
}

// Trial is one run of an experiment.
type Trial struct {
	Seed        uint64
	Sum         account.Sum
	Observation Observation
}

// runTrial runs an experiment once, in its own world.
func runTrial(e Experiment, o Options, seed uint64) (t Trial, err error) {
	w, err := newWorld(o, seed, !o.Loopback)
	if err != nil {
		return t, err
	}

	// A failure ends only this trial; any other panic is a bug and propagates. The world closes in both cases, since
	// its defer came first.
	defer func() { err = errors.Join(err, w.closeWorld()) }()
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failure:
			err = fmt.Errorf("%s, seed %d: %w", e.Name, seed, r.err)
		default:
			panic(r)
		}
	}()

	t.Seed = seed
	t.Observation = e.Run(w)

	// The ledger is complete only after every caller has left and its pipe has been read to the end.
	if err := w.settleCallers(); err != nil {
		return t, err
	}
	t.Sum = w.Ledger.Sum()
	return t, nil
}

// usable returns an error if this machine cannot have separate hosts.
func usable() error {
	n, err := lan.Open(0)
	if err != nil {
		return err
	}
	return errors.Join(n.Add(2), n.Close())
}

func now() int64 { return account.Now() }
