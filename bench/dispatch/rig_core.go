package dispatch

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// core is one thread: the generator, the loop, and the completions of its partition's batches.
type core struct {
	r      *rig
	to     dispatcher
	number int
	loop   *engine.Loop
	front  *engine.Frontend // its own, like that of a goroutine that reads a connection
	draw   uint64           // state of the generator that draws models
	first  uint64           // the core's models are first, first+step, …
	step   uint64
	models uint64 // number of its models
	drawn  uint64 // number of these models from which it draws now
	id     uint64
	burst  [burst]wire.Submit
	dones  [][]wire.Done // by kind of GPUs

	mu       sync.Mutex   // guards the calendar and the fields below: any core may send a batch
	calendar [slots]int32 // first of the batches that end in the slot, +1: a chain in running
	running  []running
	unused   int32 // chain of unused places in running
	batches  uint64
	served   uint64
	dropped  uint64
	delays   []int64 // ready → grant, of the sampled batches
	sampling bool

	now    atomic.Int64 // as of the latest burst: precise enough for the GPUs, and reading a clock takes as long as two requests
	done   int64        // number of the last reported calendar slot; used only by the core
	lagMax int64
	sent   uint64
	busy   time.Duration // time not spent waiting for the next arrival
}

// dispatcher takes the generator's requests, in virtual time, and the ends of the batches that it sent to GPUs.
type dispatcher interface {
	dispatch(c *core, now sched.Time, m []wire.Submit)
	reportDone(kind int, m []wire.Done)
}

// running is a batch on an emulated GPU.
type running struct {
	done wire.Done
	kind int32
	next int32
}

// enterBatch enters a batch into the calendar. The caller holds mu.
func (c *core) enterBatch(at int64, kind int32, m wire.Done) {
	if c.unused == 0 {
		c.running = append(c.running, running{})
		c.unused = int32(len(c.running))
	}

	i := c.unused

	// Places are numbered from 1: 0 ends a chain, so an empty slot needs no initialisation.
	x := &c.running[i-1]
	c.unused = x.next
	x.done, x.kind, x.next = m, kind, c.calendar[at]
	c.calendar[at] = i
}

// leaveSlot moves the batches of a slot to dones. The caller holds mu.
func (c *core) leaveSlot(at int64) {
	for i := c.calendar[at]; i != 0; {
		x := &c.running[i-1]
		c.dones[x.kind] = append(c.dones[x.kind], x.done)
		i, x.next, c.unused = x.next, c.unused, i
	}
	c.calendar[at] = 0
}

// The calendar reports completions. Its slots have 65.5 µs, 134 ms in total.
const (
	slotShift = 16
	slots     = 2048
)

// readyAt returns when the batch could first have been granted, with an idle GPU: when its n-th request had arrived
// and the time d − ℓ(n+1) had come, for the smallest such n, or when it was full. Input.Key holds each request's
// intended arrival.
func readyAt(x *engine.Order, exec *table) int64 {
	head := int64(x.Requests[0].Input.Key) + slo
	ready := int64(1) << 62
	for k := range x.Requests {
		at := int64(x.Requests[k].Input.Key)
		if n := k + 1; n < batchMax {
			at = max(at, head-exec[n+1])
		}
		ready = min(ready, at)
	}
	return ready
}

// yieldEvery is how often a core yields, in ns. Go preempts a goroutine that has not yielded for 10 ms, and on a
// machine whose cores all spin it resumes one kernel tick later.
const yieldEvery = 2_000_000

// runCore generates requests at a rate for d, and carries everything that is due on this core in between.
func (c *core) runCore(rate float64, d time.Duration, wake bool) {
	clock := c.r.clock
	start := int64(clock.Now())
	gap := 1e9 / rate

	n := 0 // requests sent in this run
	yield := start
	for now := start; now < start+int64(d); now = int64(clock.Now()) {
		c.now.Store(now)

		if now > yield {
			runtime.Gosched()
			yield = now + yieldEvery
		}

		// Without a due request, the core completes batches and lets the loop check its timers, as its neighbours
		// would.
		due := int(float64(now-start)/gap) - n
		if due <= 0 {
			c.completeDue(now)
			if !c.loop.Poll(sched.Time(now)) {
				c.busy -= time.Duration(int64(clock.Now()) - now)
			}
			continue
		}

		if lag := now - start - int64(float64(n)*gap); lag > c.lagMax {
			c.lagMax = lag
		}

		// Models start one after another, so that the engine does not get all of them at one moment.
		if wake {
			c.drawn = min(c.models, 1+uint64(float64(now-start)/min(slo, float64(d)/2)*float64(c.models)))
		}

		m := c.fillBurst(min(due, burst), n, start, gap, now)
		n += len(m)
		c.front.Submit(m)
		c.loop.Poll(sched.Time(now))
		c.completeDue(now)
	}

	c.drawn = c.models
	c.busy += time.Duration(int64(clock.Now()) - start)
	c.sent += uint64(n)
}

// fillBurst makes the k requests that follow the n-th one since start, sent at now.
func (c *core) fillBurst(k, n int, start int64, gap float64, now int64) []wire.Submit {
	for i := range k {
		// A request's deadline counts from its scheduled time, so a lag of the generator does not ease the load.
		at := start + int64(float64(n+i)*gap)
		m := &c.burst[i]
		m.ID, m.Model, m.Budget, m.Input.Key = c.id, c.nextModel(), at+slo-now, uint64(at)
		c.id++
	}
	return c.burst[:k]
}

// nextModel draws the model of the next request with equal probabilities. A Weyl sequence, scrambled by one
// multiplication, costs less than a table that must stay in the cache.
func (c *core) nextModel() uint32 {
	c.draw += 0x9E3779B97F4A7C15
	hi, lo := bits.Mul64(c.draw, 0xD6E8FEB86659FD93)
	hi, _ = bits.Mul64(hi^lo, c.drawn)
	if c.r.families != nil {
		return c.r.families[hi]
	}
	return uint32(hi*c.step + c.first)
}

// completeDue reports the batches whose calendar slots have passed.
func (c *core) completeDue(now int64) {
	for last := now>>slotShift - 1; c.done < last; {
		// After a pause longer than the calendar, scan only its last round: older slots are the same places.
		c.done = max(c.done+1, last-slots+1)
		at := c.done & (slots - 1)
		c.mu.Lock()
		c.leaveSlot(at)
		c.mu.Unlock()

		// Report without the lock: the dispatcher may send the next batch at once, which enters the calendar.
		for k, m := range c.dones {
			if len(m) > 0 {
				c.to.reportDone(k, m)
				c.dones[k] = m[:0]
			}
		}
	}
}
