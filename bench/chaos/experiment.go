//go:build linux

package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/bench/chaos/account"
	"downbeat.dev/bench/chaos/lan"
)

// Experiment is a promise and how it is tried.
type Experiment struct {
	Name    string
	Promise string
	Short   bool // part of the short form
	Long    bool // only where it is named
	Packets bool // harms packets: needs hosts of their own
	Run     func(*World) Observation
}

// Observation is what one trial saw beside what the ledger says.
type Observation struct {
	Measures   []Measure
	Recoveries []time.Duration // each from a fault, or its end, until goodput was back
	Lost       map[string]int  // why requests were lost that a measure counts
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

// met tells whether a value keeps the bar.
func (m Measure) met(value float64) bool {
	if m.AtMost {
		return value <= m.Bar
	}
	return value >= m.Bar
}

// countLost counts what a caller sent since a moment and that got no right output in time, and notes why.
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

// recovered notes when a caller's goodput was back after a moment; where it never was, so long as there was time.
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

// runTrial runs an experiment once, in a world of its own.
func runTrial(e Experiment, o Options, seed uint64) (t Trial, err error) {
	w, err := newWorld(o, seed, !o.Loopback)
	if err != nil {
		return t, err
	}

	// A failure breaks off this trial only; any other panic is a bug and goes on. The world closes in both
	// cases, for its defer came first.
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

	// The ledger is complete only once every caller has left and its pipe is read to the end.
	if err := w.settleCallers(); err != nil {
		return t, err
	}
	t.Sum = w.Ledger.Sum()
	return t, nil
}

// usable tells whether hosts of their own can be had here.
func usable() error {
	n, err := lan.Open(0)
	if err != nil {
		return err
	}
	return errors.Join(n.Add(2), n.Close())
}

// percentile returns the value below which p percent of the values lie: the nearest rank. Values are sorted.
func percentile[T cmp.Ordered](values []T, p float64) T {
	slices.Sort(values)
	// 0.999999 rounds up, and leaves an exact rank alone that floating point made a little too large.
	rank := int(float64(len(values))*p/100 + 0.999999)
	return values[max(0, min(len(values)-1, rank-1))]
}

func now() int64 { return account.Now() }
