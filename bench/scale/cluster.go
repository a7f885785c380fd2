package scale

import (
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// gpuState is the state of a GPU of the cluster between order and return.
type gpuState uint8

const (
	absent gpuState = iota
	starting
	serving
	draining // gets no more batches and ends its present ones
)

// never is later than any run.
const never = sched.Never

// cluster is a sim.Server: the serving scheduler on GPUs that an autoscaler orders and returns once a second.
type cluster struct {
	*sim.Downbeat
	w     *sim.World
	rule  Rule
	start time.Duration // time from a GPU's order to its first batch

	state   []gpuState
	readyAt []sched.Time // of a starting GPU
	ordered int          // GPUs that start or serve
	tick    sched.Time

	requests, bad []int // ended in each second of the run
	busyBefore    sim.Duration
	samples       []Sample
}

// Sample is a second of a run.
type Sample struct {
	Serving, Ordered int // GPUs that serve; GPUs that serve or start
	Held             int // GPUs that cost something: ordered ones, and those that end their last batch
	Wanted           int // the rule's advice
	Demand           float64
	Requests, Bad    int // ended in this second
}

func newScalingCluster(w *sim.World, rule Rule, start time.Duration, first int) *cluster {
	c := &cluster{Downbeat: sim.NewDownbeat(w), w: w, rule: rule, start: start, state: make([]gpuState, w.GPUs), readyAt: make([]sched.Time, w.GPUs),
		tick: sched.Time(time.Second)}

	// A Downbeat begins with every GPU of the world; GPUs that are not ordered leave it before the run.
	for g := range w.GPUs {
		if g < first {
			c.state[g] = serving
			c.ordered++
			continue
		}
		c.Scheduler().RemoveGPU(0, sched.GPUID(g))
	}
	return c
}

// countEnded counts a request in the second of its end.
func (c *cluster) countEnded(_ int32, o sim.Outcome, at sim.Time) {
	second := int(time.Duration(at) / time.Second)
	for len(c.requests) <= second {
		c.requests, c.bad = append(c.requests, 0), append(c.bad, 0)
	}
	c.requests[second]++
	if o != sim.Served {
		c.bad[second]++
	}
}

// NextWake implements sim.Server.
func (c *cluster) NextWake() sim.Time {
	at := min(c.Downbeat.NextWake(), c.tick)

	for g, s := range c.state {
		if s == starting {
			at = min(at, c.readyAt[g])
		}
	}
	return at
}

// Wake implements sim.Server. GPUs join and leave before the scheduler acts, so that it uses the present GPUs.
func (c *cluster) Wake(now sim.Time) {
	for g, s := range c.state {
		switch {
		case s == starting && c.readyAt[g] <= now:
			c.join(now, g)
		case s == draining && c.w.FreeAt(int32(g)) <= now:
			c.Scheduler().RemoveGPU(now, sched.GPUID(g))
			c.state[g] = absent
		}
	}

	if now >= c.tick {
		c.observe(now)
		c.tick = c.tick.Add(sim.Duration(time.Second))
	}
	c.Downbeat.Wake(now)
}

func (c *cluster) join(now sim.Time, g int) {
	if err := c.Scheduler().AddGPU(now, sched.GPUID(g), 0); err != nil {
		panic("scale: " + err.Error())
	}
	c.state[g] = serving
}

// observe passes the previous second to the rule and follows its advice.
func (c *cluster) observe(now sim.Time) {
	// The tick ends the previous second.
	second := int(time.Duration(now)/time.Second) - 1
	s := Sample{Demand: c.Scheduler().Load(0).Demand, Ordered: c.ordered}
	if second < len(c.requests) {
		s.Requests, s.Bad = c.requests[second], c.bad[second]
	}

	for _, state := range c.state {
		if state == serving {
			s.Serving++
		}
		if state != absent {
			s.Held++
		}
	}

	busy := c.w.Result.Busy
	s.Wanted = c.rule(time.Duration(now), Seen{Load: plan.Load{Demand: s.Demand, Requests: s.Requests, Bad: s.Bad, GPUs: s.Serving, Ordered: s.Ordered},
		Busy: time.Duration(busy - c.busyBefore)})
	c.busyBefore = busy
	c.samples = append(c.samples, s)
	c.orderGPUs(now, min(max(1, s.Wanted), c.w.GPUs))
}

// orderGPUs orders or returns GPUs until wanted GPUs are ordered.
func (c *cluster) orderGPUs(now sim.Time, wanted int) {
	// Take draining GPUs first, which are the cheapest to get back; then the lowest numbers.
	for _, from := range []gpuState{draining, absent} {
		for g := 0; g < len(c.state) && c.ordered < wanted; g++ {
			switch {
			case c.state[g] != from:
				continue
			case from == draining:
				c.Scheduler().HoldGPU(now, sched.GPUID(g), now)
				c.state[g] = serving
			case c.start == 0:
				c.join(now, g)
			default:
				c.state[g], c.readyAt[g] = starting, now.Add(sim.Duration(c.start))
			}
			c.ordered++
		}
	}

	// Return starting GPUs first, which have nothing to finish; then the highest numbers (plan.Drain).
	for _, from := range []gpuState{starting, serving} {
		for g := len(c.state) - 1; g >= 0 && c.ordered > wanted; g-- {
			if c.state[g] != from {
				continue
			}
			c.state[g] = absent
			if from == serving {
				c.Scheduler().HoldGPU(now, sched.GPUID(g), never)
				c.state[g] = draining
			}
			c.ordered--
		}
	}
}
