package sim

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"downbeat.dev/core/lead"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
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
	q      events
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
		return nil, fmt.Errorf("sim: seed %d: %w", o.Seed, err)
	}

	c.act()
	for _, s := range c.schedulers {
		_ = s.e.Close() // it cannot fail with Options.Manual
	}
	c.report.Hash, c.report.Events = c.trace.hash, c.trace.n
	if err := c.check.err; err != nil {
		return &c.report, fmt.Errorf("sim: seed %d: %w\noptions %+v\nthe latest events:\n%v", o.Seed, err, o, &c.trace)
	}
	return &c.report, nil
}

func newCluster(o Options) (*Cluster, error) {
	o = o.filled()

	// One seed gives three streams: options, events and arrivals. A fault that draws more numbers does not change the
	// load.
	c := &Cluster{o: o, rng: rand.New(rand.NewPCG(o.Seed, 2)), load: rand.New(rand.NewPCG(o.Seed, 3)), now: 1e6}
	c.check.watchCluster(c)
	c.recoder = wire.NewReader(&c.recoding)
	c.drawModels()
	for i := range max(1, o.Schedulers) {
		c.schedulers = append(c.schedulers, &scheduler{c: c, index: i})
	}

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

// drawModels draws the models.
func (c *Cluster) drawModels() {
	// The skew of the models' popularities differs between seeds, from even to strong.
	c.skew = 1 + 2*c.rng.Float64()

	for i := range c.o.Models {
		if c.o.loading() {
			c.models = append(c.models, movableModel(i, i/c.o.Clusters))
		} else {
			c.models = append(c.models, c.drawModel(i))
		}
	}
	if c.o.Variants > 1 {
		c.drawFamilies(rand.New(rand.NewPCG(c.o.Seed, 6)))
	}
}

// act is the whole run: arrivals with faults, recovery, a probe of every model, and the end.
func (c *Cluster) act() {
	for _, b := range c.backs {
		b.connectAll()
	}
	for range c.o.Frontends {
		c.newFront()
	}

	span := Duration(float64(c.o.Requests) / c.rate() * 1e9)

	// Bound the length of a run, whatever load its options draw.
	span = min(max(span, 20e6), 2e9)
	if c.o.Span > 0 {
		span = c.o.Span
	}
	c.report.Span = span
	end := c.now.Add(span)

	for _, f := range c.fronts {
		c.arrivals(f, c.rate()/float64(c.o.Frontends), end)
	}

	c.faults(span)
	c.beginMoves(span)
	c.ping(end)
	if len(c.schedulers) > 1 {
		c.snapshot()
	}
	c.run(end)
	c.run(max(end, c.absentTill)) // a backend that left for long returns by itself

	// Recovery: no more faults, and every model must be served again.
	c.endFaults()
	c.recover()

	c.probe()
	c.endMoves()
	if c.check.err == nil {
		c.check.checkEnd()
	}
}

// recover runs until everything must have ended. Learners rest in the middle of the recovery: their steps on idle
// GPUs would be four events of five, and would check nothing that the beginning and the end do not.
func (c *Cluster) recover() {
	end := c.now.Add(c.patience())
	c.run(c.now.Add(spareAfter))
	c.restLearners()
	c.run(end.Add(-spareBefore))
	c.wakeLearners()
	c.run(end)
}

// momentMost bounds the events and turns at one time. A leader that dies under load causes thousands.
const momentMost = 1_000_000

// run processes events until a time and polls each engine when it is due.
func (c *Cluster) run(until Time) {
	for c.check.err == nil {
		s := c.nextPoll()
		at := min(c.q.next(), s.pollAt())
		if at > until {
			c.now = until
			return
		}
		if at > c.now {
			c.now, c.moment = at, 0
		}
		if c.moment++; c.moment > momentMost {
			c.check.fail("C12: %d events and turns at one moment, and no end", c.moment)
			return
		}

		// If an engine and an event are due at the same time, a coin decides the order, so that seeds try both.
		if c.q.next() <= c.now && (s.pollAt() > c.now || c.rng.IntN(2) == 0) {
			c.q.pop()()
			continue
		}
		s.poll()
	}
}

// nextPoll returns the scheduler whose engine is due first.
func (c *Cluster) nextPoll() *scheduler {
	first := c.schedulers[0]
	for _, s := range c.schedulers {
		if s.dead {
			continue
		}

		// Calls may have changed the engine's next wake-up. Draw its delay once per change.
		if wake := s.e.NextWake(); wake != s.wake {
			s.arm(wake)
		}
		if s.pollAt() < first.pollAt() {
			first = s
		}
	}
	return first
}

// pollAt returns the time of the engine's next turn.
func (s *scheduler) pollAt() Time {
	if s.dead {
		return sched.Never
	}
	return max(s.polled, s.paused)
}

// arm sets the next turn to the wake-up plus a random delay. A turn that was due earlier does not become later.
func (s *scheduler) arm(wake Time) {
	c := s.c
	at := max(c.now, wake)
	if wake != sched.Never && c.o.PollLate > 0 && !c.calm {
		at = at.Add(Duration(c.rng.Int64N(int64(c.o.PollLate))))
	}
	if wake <= s.polled && s.polled != sched.Never {
		at = min(at, s.polled)
	}
	s.wake, s.polled = wake, at
}

// poll gives the engine turns until it asks for a later one, as its loops do.
func (s *scheduler) poll() {
	c := s.c
	for spins := 0; spins == 0 || s.e.NextWake() <= c.now; spins++ {
		// Loops are independent of each other, so every order must work.
		if c.o.ShufflePolls {
			loops := s.e.Loops()
			for _, i := range c.rng.Perm(len(loops)) {
				loops[i].Poll(c.now)
			}
		}
		s.e.Poll(c.now)

		// An engine that always asks for another turn at once would stop virtual time.
		if spins == 100 {
			c.check.fail("C12: the engine was polled %d times at %d and still asks for %d", spins, c.now, s.e.NextWake())
			return
		}
	}
	s.wake, s.polled = sched.Never, sched.Never
	s.polls++
}

func (c *Cluster) at(t Time, do func()) { c.q.push(t, do) }

func (c *Cluster) after(d Duration, do func()) { c.q.push(c.now.Add(d), do) }

// chance returns true with probability p. It draws nothing if p is 0.
func (c *Cluster) chance(p float64) bool { return p > 0 && c.rng.Float64() < p }

// within returns a random duration from lo to hi.
func (c *Cluster) within(lo, hi Duration) Duration {
	if hi <= lo {
		return lo
	}
	return lo + Duration(c.rng.Int64N(int64(hi-lo)+1))
}

// drift returns a clock's random rate.
func (c *Cluster) drift() float64 {
	if c.calm || c.o.Drift == 0 {
		return 1
	}
	return 1 + c.o.Drift*(2*c.rng.Float64()-1)
}

// clusterModel is a model with its profile, before the backends' differences.
type clusterModel struct {
	name  string
	table []time.Duration
	slo   Duration
	cost  float64 // GPU time per request in a batch that takes half of the SLO, ns

	static uint64 // bytes

	family   string // empty: none
	accuracy float64
	homes    []bool // by sub-cluster; nil: as in modelsOf
}

func (c *Cluster) drawModel(i int) clusterModel {
	r := c.rng

	// A product of two draws makes most models small and a few large.
	alpha, beta := 0.05e6+5e6*r.Float64()*r.Float64(), 0.2e6+20e6*r.Float64()*r.Float64()
	n := []int{1, 2, 8, 16, 32, 64}[r.IntN(6)]
	m := clusterModel{name: fmt.Sprintf("m%d", i), table: make([]time.Duration, n)}
	for b := range m.table {
		m.table[b] = time.Duration(alpha*float64(b+1) + beta)
	}

	slack := 2 + 10*r.Float64()
	if c.o.Tight {
		slack = 1.05 + r.Float64()
	}
	// The SLO must allow for the slowest backend (Unlike) and for the network.
	worst := float64(m.table[0])*(1+c.o.Unlike) + 2*float64(c.o.Delay+c.o.Vary) + float64(c.o.Ctrl+c.o.Data)
	m.slo = Duration(worst * slack)

	// Compute the cost of a request at a batch that takes half of the SLO: a request waits for one batch and runs in
	// the next.
	b := max(1, n-n/8)
	for b > 1 && Duration(m.table[b-1]) > m.slo/2 {
		b--
	}
	m.cost = float64(m.table[b-1]) / float64(b)
	return m
}

// rate returns the load in requests/s: a share of the capacity of all GPUs at good batch sizes.
func (c *Cluster) rate() float64 {
	var cost float64
	for i := range c.models {
		cost += c.modelShare(i) * c.models[i].cost
	}
	return c.o.Load * float64(c.o.Backends*c.o.GPUs) / cost * 1e9
}

// modelShare returns a model's share of the load: pickModel picks model n·u^skew.
func (c *Cluster) modelShare(i int) float64 {
	n := float64(len(c.models))
	return math.Pow((float64(i)+1)/n, 1/c.skew) - math.Pow(float64(i)/n, 1/c.skew)
}

func (c *Cluster) pickModel() int {
	n := len(c.models)
	return min(n-1, int(float64(n)*math.Pow(c.load.Float64(), c.skew)))
}

// modelsOf returns the models of a sub-cluster; some models are in two.
func (c *Cluster) modelsOf(cluster int) []int {
	var out []int
	for i := range c.models {
		if c.o.loading() { // loaded models are tracked separately
			out = append(out, i)
			continue
		}

		if c.models[i].homes != nil {
			if c.models[i].homes[cluster] {
				out = append(out, i)
			}
			continue
		}

		// Put some models into a second sub-cluster, to exercise the choice between two.
		if i%c.o.Clusters == cluster || i%7 == 3 && (i+1)%c.o.Clusters == cluster {
			out = append(out, i)
		}
	}
	return out
}
