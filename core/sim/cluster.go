package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/sched"
)

// Cluster is an engine in virtual time, with frontends, backends and the messages between them.
type Cluster struct {
	o      Options
	rng    *rand.Rand
	load   *rand.Rand // what arrives; so that it does not depend on what happens
	now    Time
	e      *engine.Engine
	q      events
	models []clusterModel
	skew   float64
	fronts []*front
	backs  []*back
	calm   bool // faults are over
	trace  trace
	check  checker

	wake, polled Time // what the engine asked for, and when it gets it
	report       Report
}

// Report is what came out of a run.
type Report struct {
	Calls, Good, Late, Ended, Local int // of callers: outputs in time and late, outcomes, given up
	Span                            Duration
	Batches, Strays, Twins          int
	Lost, Doubled                   int // messages
	Cuts                            int // by the watchdog
	Reasons                         [sched.ReasonCount]int
	Work                            float64 // GPU time that the good ones take at good batches, ns
	Hash                            uint64
	Events                          int
}

// Goodput is what was answered in time, over the time of arrivals, in GPUs that do nothing else.
// Requests/s would change with the models' shares.
func (r *Report) Goodput() float64 { return r.Work / float64(r.Span) }

// Now implements engine.Clock.
func (c *Cluster) Now() Time { return c.now }

// Run runs a Cluster to its end, or until a checker objects: then the error says everything.
func Run(o Options) (*Report, error) {
	c, err := newCluster(o)
	if err != nil {
		return nil, fmt.Errorf("sim: seed %d: %w", o.Seed, err)
	}
	defer c.e.Close()
	c.act()
	c.report.Hash, c.report.Events = c.trace.hash, c.trace.n
	if err := c.check.err; err != nil {
		return &c.report, fmt.Errorf("sim: seed %d: %w\noptions %+v\nthe latest events:\n%v", o.Seed, err, o, &c.trace)
	}
	return &c.report, nil
}

func newCluster(o Options) (*Cluster, error) {
	o.Models, o.Backends = max(o.Models, o.Clusters), max(o.Backends, o.Clusters)
	c := &Cluster{o: o, rng: rand.New(rand.NewPCG(o.Seed, 2)), load: rand.New(rand.NewPCG(o.Seed, 3)), now: 1e6, wake: sched.Never, polled: sched.Never}
	c.check.c, c.check.sessions = c, map[uint32]*session{}
	e, err := engine.New(engine.Options{Manual: true, Clock: c, Cores: o.Cores, Partitions: o.Partitions, QueueMax: o.QueueMax,
		RequestsMax: o.LiveMax, Ctrl: time.Duration(o.Ctrl), Data: time.Duration(o.Data), Prompt: o.Prompt})
	if err != nil {
		return nil, err
	}
	c.e = e
	c.skew = 1 + 2*c.rng.Float64()
	for i := range o.Models {
		c.models = append(c.models, c.drawModel(i))
	}
	for i := range o.Backends {
		c.backs = append(c.backs, c.newBack(i))
	}
	return c, nil
}

// act is the whole run: arrivals with faults, recovery, a probe of every model, and the end.
func (c *Cluster) act() {
	for _, b := range c.backs {
		b.connect()
	}
	for range c.o.Frontends {
		c.newFront()
	}
	span := Duration(float64(c.o.Requests) / c.rate() * 1e9)
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
	c.ping(end)
	c.run(end)
	c.heal()
	c.run(c.now.Add(c.patience()))
	c.probe()
	if c.check.err == nil {
		c.check.end()
	}
}

// run lets events happen until a time, polling the engine when it is due.
func (c *Cluster) run(until Time) {
	for c.check.err == nil {
		if wake := c.e.NextWake(); wake != c.wake {
			c.arm(wake)
		}
		at := min(c.q.next(), c.polled)
		if at > until {
			c.now = until
			return
		}
		if at > c.now {
			c.now = at
		}
		if c.q.next() <= c.now && (c.polled > c.now || c.rng.IntN(2) == 0) {
			c.q.pop()()
			continue
		}
		c.poll()
	}
}

// arm notes that the engine wants to be polled at wake, and draws by how much that will be late. A
// wake-up that was due before does not become later.
func (c *Cluster) arm(wake Time) {
	at := max(c.now, wake)
	if wake != sched.Never && c.o.PollLate > 0 && !c.calm {
		at = at.Add(Duration(c.rng.Int64N(int64(c.o.PollLate))))
	}
	if wake <= c.polled && c.polled != sched.Never {
		at = min(at, c.polled)
	}
	c.wake, c.polled = wake, at
}

// poll gives the engine its turns until it asks for a later one, as its loops do.
func (c *Cluster) poll() {
	for spins := 0; spins == 0 || c.e.NextWake() <= c.now; spins++ {
		if c.o.ShufflePolls {
			loops := c.e.Loops()
			for _, i := range c.rng.Perm(len(loops)) {
				loops[i].Poll(c.now)
			}
		}
		c.e.Poll(c.now)
		if spins == 100 {
			c.check.fail("C2: the engine was polled %d times at %d and still asks for %d", spins, c.now, c.e.NextWake())
			return
		}
	}
	c.wake, c.polled = sched.Never, sched.Never
}

func (c *Cluster) at(t Time, do func()) { c.q.push(t, do) }

func (c *Cluster) after(d Duration, do func()) { c.q.push(c.now.Add(d), do) }

// chance says yes with probability p, and draws nothing when p is 0.
func (c *Cluster) chance(p float64) bool { return p > 0 && c.rng.Float64() < p }

// within returns a duration from lo to hi.
func (c *Cluster) within(lo, hi Duration) Duration {
	if hi <= lo {
		return lo
	}
	return lo + Duration(c.rng.Int64N(int64(hi-lo)+1))
}

// drift is how much faster a clock runs.
func (c *Cluster) drift() float64 {
	if c.o.Drift == 0 {
		return 1
	}
	return 1 + c.o.Drift*(2*c.rng.Float64()-1)
}

// clusterModel is a model as its backends profile it, before their differences.
type clusterModel struct {
	name  string
	table []int64
	slo   Duration
	cost  float64 // GPU time of a request, ns, in a batch that takes half of the SLO
}

func (c *Cluster) drawModel(i int) clusterModel {
	r := c.rng
	alpha, beta := 0.05e6+5e6*r.Float64()*r.Float64(), 0.2e6+20e6*r.Float64()*r.Float64()
	n := []int{1, 2, 8, 16, 32, 64}[r.IntN(6)]
	m := clusterModel{name: fmt.Sprintf("m%d", i), table: make([]int64, n)}
	for b := range m.table {
		m.table[b] = int64(alpha*float64(b+1) + beta)
	}
	slack := 2 + 10*r.Float64()
	if c.o.Tight {
		slack = 1.05 + r.Float64()
	}
	// The slowest backend may take Unlike longer; the network takes its part.
	worst := float64(m.table[0])*(1+c.o.Unlike) + 2*float64(c.o.Delay+c.o.Vary) + float64(c.o.Ctrl+c.o.Data)
	m.slo = Duration(worst * slack)
	b := max(1, n-n/8)
	for b > 1 && Duration(m.table[b-1]) > m.slo/2 {
		b--
	}
	m.cost = float64(m.table[b-1]) / float64(b)
	return m
}

// rate returns the load in requests/s: a share of what all GPUs can do at good batches.
func (c *Cluster) rate() float64 {
	var cost float64
	for i := range c.models {
		cost += c.share(i) * c.models[i].cost
	}
	return c.o.Load * float64(c.o.Backends*c.o.GPUs) / cost * 1e9
}

// share is a model's part of the load: pickModel takes model n·u^skew.
func (c *Cluster) share(i int) float64 {
	n := float64(len(c.models))
	return math.Pow((float64(i)+1)/n, 1/c.skew) - math.Pow(float64(i)/n, 1/c.skew)
}

func (c *Cluster) pickModel() int {
	n := len(c.models)
	return min(n-1, int(float64(n)*math.Pow(c.load.Float64(), c.skew)))
}

// modelsOf returns which models a sub-cluster serves; some are in two.
func (c *Cluster) modelsOf(cluster int) []int {
	var out []int
	for i := range c.models {
		if i%c.o.Clusters == cluster || i%7 == 3 && (i+1)%c.o.Clusters == cluster {
			out = append(out, i)
		}
	}
	return out
}
