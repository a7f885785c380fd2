package swarm

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"downbeat.dev/core/lead"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// Time and Duration are the scheduler's, in virtual nanoseconds.
type (
	Time     = sched.Time
	Duration = sched.Duration
)

// Cluster is an engine in virtual time with its frontends, its backends and the messages between them.
type Cluster struct {
	o      Options
	rng    *rand.Rand
	load   *rand.Rand // arrivals; separate, so that the load does not depend on the faults
	kinds  []float64  // by sub-cluster: factor on its GPUs' batch times; nil: all alike
	floors map[string]float64
	now    Time
	moment int // events and turns at the present time
	queue  events
	models []clusterModel
	skew   float64
	fronts []*front
	backs  []*back
	calm   bool // faults are over
	trace  trace
	check  checker
	report Report

	schedulers []*scheduler
	record     lead.Record // of the election's store
	revision   uint64
	epochs     int // epochs that began
	moves      *moves
	placements int  // placements requested from backends
	absentTill Time // when the backend that left for long returns
	resting    bool // learners have no work

	recoding bytes.Reader // input of recoder
	recoder  *wire.Reader
}

// Report is the result of a run.
type Report struct {
	Calls, Good, Late, Ended, Local int // calls: outputs in time, outputs late, outcomes, given up by the frontend
	Span                            Duration
	Batches, Strays, Duplicates     int
	Cuts                            int                    // sessions cut by the watchdog
	Saved                           int                    // requests that waited for another leader and got an output in time
	Reasons                         [model.ReasonCount]int // ends of calls by reason
	Told                            [model.ReasonCount]int // reasons sent by schedulers and backends, including those for invalid messages
	Faults                          [FaultCount]int
	Work                            float64 // GPU time of the good requests at good batch sizes, ns
	Hash                            uint64
	Events                          int
	Moves                           MovesReport
	Spare                           SpareReport
	Families                        FamiliesReport
}

// Goodput returns the work answered in time, divided by the time of arrivals: the number of fully used GPUs.
// Requests/s would depend on the models' shares.
func (r *Report) Goodput() float64 { return r.Work / float64(r.Span) }

// Now implements engine.Clock.
func (c *Cluster) Now() Time { return c.now }

// Run runs a Cluster to its end or to the first violation, which the error describes with the seed, the options and
// the latest events.
func Run(o Options) (*Report, error) {
	c, err := newCluster(o)
	if err != nil {
		return nil, fmt.Errorf("swarm: seed %d: %w", o.Seed, err)
	}

	c.runPhases()
	for _, s := range c.schedulers {
		_ = s.engine.Close() // it cannot fail with Options.Manual
	}

	c.report.Hash, c.report.Events = c.trace.hash, c.trace.n

	// Whoever reads the error can repeat the run from the seed alone.
	if err := c.check.err; err != nil {
		return &c.report, fmt.Errorf("swarm: seed %d: %w\noptions %+v\nthe latest events:\n%v", o.Seed, err, o, &c.trace)
	}
	return &c.report, nil
}

func newCluster(o Options) (*Cluster, error) {
	o = o.raisedToMinimum()

	// One seed gives three streams: options, events and arrivals. A fault that draws more numbers does not change the
	// load.
	c := &Cluster{o: o, rng: rand.New(rand.NewPCG(o.Seed, 2)), load: rand.New(rand.NewPCG(o.Seed, 3)), now: 1e6}
	c.check.watchCluster(c)
	c.recoder = wire.NewReader(&c.recoding)
	c.drawModels()
	for i := range max(1, o.Schedulers) {
		c.schedulers = append(c.schedulers, &scheduler{c: c, index: i})
	}

	// A scheduler leads from its start if it is the only one, so all are listed before the first starts.
	for _, s := range c.schedulers {
		if err := s.startLife(); err != nil {
			return nil, err
		}
	}

	for i := range o.Backends {
		c.backs = append(c.backs, c.newBack(i))
	}
	return c, nil
}

// runPhases is the whole run: arrivals with faults, recovery, a probe of every model, and the end.
func (c *Cluster) runPhases() {
	// Peers connect from the first moment on.
	for _, b := range c.backs {
		b.connectAll()
	}

	for range c.o.Frontends {
		c.newFront()
	}

	span := Duration(float64(c.o.Requests) / c.loadRate() * 1e9)

	// Bound the length of a run, whatever load its options draw.
	span = min(max(span, 20e6), 2e9)
	if c.o.Span > 0 {
		span = c.o.Span
	}

	c.report.Span = span
	end := c.now.Add(span)

	// Load and faults begin together and last until end.
	for _, f := range c.fronts {
		c.scheduleArrivals(f, c.loadRate()/float64(c.o.Frontends), end)
	}

	c.scheduleFaults(span)
	c.beginMoves(span)
	c.measureRoundTrips(end)
	if len(c.schedulers) > 1 {
		c.shareLearned()
	}

	c.runUntil(end)
	c.runUntil(max(end, c.absentTill)) // a backend that left for long returns by itself

	// Recovery: no more faults, and every model must be served again.
	c.endFaults()
	c.runRecovery()

	c.probeModels()
	c.endMoves()
	if c.check.err == nil {
		c.check.checkEnd()
	}
}

func (c *Cluster) at(t Time, do func()) { c.queue.addEvent(t, do) }

func (c *Cluster) after(d Duration, do func()) { c.queue.addEvent(c.now.Add(d), do) }

// chance returns true with probability p. It draws nothing if p is 0.
func (c *Cluster) chance(p float64) bool { return p > 0 && c.rng.Float64() < p }

// within returns a random duration from lo to hi.
func (c *Cluster) within(lo, hi Duration) Duration {
	if hi <= lo {
		return lo
	}
	return lo + Duration(c.rng.Int64N(int64(hi-lo)+1))
}

// drawClockRate returns a clock's random rate.
func (c *Cluster) drawClockRate() float64 {
	if c.calm || c.o.Drift == 0 {
		return 1
	}
	return 1 + c.o.Drift*(2*c.rng.Float64()-1)
}
