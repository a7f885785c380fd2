package dispatch

import (
	"cmp"
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// Setting is the measured setting.
type Setting struct {
	Models, GPUs, Cores int
	// Variants is the number of variants of each model, which is then a family, and Kinds the number of kinds of GPUs; 0
	// counts as 1.
	Variants, Kinds int
}

// The workload: ℓ(b) = 200 µs·b + 2 ms up to 64 and an SLO of 100 ms for every model, even popularity. With full
// batches a GPU sustains 4,300 r/s, so 10,000 GPUs sustain 43 M r/s. The most accurate variant of a family takes as long
// on the fastest kind of GPUs; see families.go.
const (
	alpha    = 200_000
	beta     = 2_000_000
	batchMax = 64
	slo      = 100_000_000
	burst    = 128     // requests that a frontend sends at once: at 20 M requests/s, those of 6.4 µs
	window   = 1 << 21 // 20 M requests/s, all for an SLO
)

// rig is an engine with emulated GPUs and generators, one thread per core.
type rig struct {
	set      Setting
	e        *engine.Engine
	kinds    []*kind
	families []uint32 // their ids
	cores    []*core
	clock    engine.Clock
}

// core is one thread: the generator, the loop, and the completions of its partition's batches.
type core struct {
	r      *rig
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

// withDefaults counts 0 variants and 0 kinds as 1.
func (s Setting) withDefaults() Setting {
	s.Variants, s.Kinds = cmp.Or(s.Variants, 1), cmp.Or(s.Kinds, 1)
	return s
}

func newRig(set Setting, clock engine.Clock) (*rig, error) {
	set = set.withDefaults()
	r := &rig{set: set, clock: clock}
	e, err := engine.New(engine.Options{Cores: set.Cores, Manual: true, RequestsMax: wire.WindowMax, Clock: clock})
	if err != nil {
		return nil, err
	}
	r.e = e

	for i := range set.Cores {
		c := &core{r: r, number: i, loop: e.Loops()[i], id: uint64(i) << 48, dones: make([][]wire.Done, set.Kinds)}
		// A model's partition is its id modulo the number of partitions: a core uses only its own.
		c.first, c.step, c.models = uint64(i), uint64(set.Cores), uint64((set.Models+set.Cores-1-i)/set.Cores)
		c.drawn = c.models
		r.cores = append(r.cores, c)
	}

	if err = r.openKinds(); err != nil {
		return nil, err
	}

	// Open the frontends last: the models come with the backend.
	for _, c := range r.cores {
		if c.front, err = e.OpenFrontend(wire.FrontendHello{Name: fmt.Sprint("generator ", c.number), Window: window}, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Models implements engine.FrontendPort. It notes the families, whose ids follow those of their variants.
func (r *rig) Models(m []model.Info) {
	for i := range m {
		if m[i].IsFamily() && !slices.Contains(r.families, m[i].ID) {
			r.families = append(r.families, m[i].ID)
		}
	}
}

// Place, Peers and Cut complete the ports.
func (r *rig) Place([]wire.Placement) {}

// Command implements engine.BackendPort.
func (r *rig) Command([]wire.ModelCommand) {}

// Spare implements engine.BackendPort; the rig has no spare work.
func (r *rig) Spare([]wire.SpareStart) {}

// Answers implements engine.FrontendPort.
func (r *rig) Answers([]wire.ModelAnswer) {}
func (r *rig) Peers([]wire.Peer)          {}
func (r *rig) Cut(error)                  {}

// Outcomes counts requests that ended without an output; the id's top bits name the core.
func (r *rig) Outcomes(m []wire.Outcome) {
	c := r.cores[m[0].ID>>48]
	c.mu.Lock()
	c.dropped += uint64(len(m))
	c.mu.Unlock()
}

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

// runLoad offers rate requests/s in total for d. With wake, the models' first requests are spread over an SLO: models
// that start together send their batches together for long, in waves that do not occur otherwise.
func (r *rig) runLoad(rate float64, d time.Duration, wake bool) {
	if r.families != nil {
		defer r.keepHouse()()
	}

	var wg sync.WaitGroup
	for _, c := range r.cores {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c.runCore(rate/float64(len(r.cores)), d, wake)
		}()
	}
	wg.Wait()
}

// yieldEvery is how often a core yields, in ns. Go preempts a goroutine that has not yielded for 10 ms, and on a
// machine whose cores all spin it resumes one kernel tick later.
const yieldEvery = 2_000_000

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

		k := min(due, burst)
		for i := range k {
			at := start + int64(float64(n+i)*gap)
			m := &c.burst[i]
			m.ID, m.Model, m.Budget, m.Input.Key = c.id, c.nextModel(), at+slo-now, uint64(at)
			c.id++
		}

		n += k
		c.front.Submit(c.burst[:k])
		c.loop.Poll(sched.Time(now))
		c.completeDue(now)
	}

	c.drawn = c.models
	c.busy += time.Duration(int64(clock.Now()) - start)
	c.sent += uint64(n)
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
		for k, m := range c.dones {
			if len(m) > 0 {
				c.r.kinds[k].back.Done(m)
				c.dones[k] = m[:0]
			}
		}
	}
}

// resetCounts resets the counters.
func (r *rig) resetCounts(sampling bool) {
	for _, c := range r.cores {
		c.mu.Lock()
		c.batches, c.served, c.dropped, c.sent, c.lagMax, c.busy = 0, 0, 0, 0, 0, 0
		if c.sampling = sampling; sampling && c.delays == nil {
			c.delays = make([]int64, 0, 1<<20)
		}
		c.delays = c.delays[:0]
		c.mu.Unlock()
	}
}

// Sample is the result of one run at one rate.
type Sample struct {
	Rate             float64 // offered
	Sent             uint64
	Dropped, Batches uint64
	LagMax           int64 // largest lag of the generator, ns
	Busy             time.Duration
	Mallocs          uint64
	Delays           []int64 // sorted
}

// measureRate warms up at rate and measures for d. It approaches the rate from below: an earlier overload at a higher
// rate leaves requests with almost no budget and tiny batches, and a scheduler that is late with these at the full
// rate stays late.
func (r *rig) measureRate(rate float64, warm, d time.Duration, delays bool) Sample {
	r.resetCounts(delays)
	r.runLoad(rate/4, warm, true)
	r.runLoad(rate, warm, false)

	// Collect the garbage of the warm-up now, not during the measurement.
	runtime.GC()
	r.resetCounts(delays)

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r.runLoad(rate, d, false)
	runtime.ReadMemStats(&after)

	s := Sample{Rate: rate, Mallocs: after.Mallocs - before.Mallocs}
	for _, c := range r.cores {
		c.mu.Lock()
		s.Sent += c.sent
		s.Dropped += c.dropped
		s.Batches += c.batches
		s.LagMax = max(s.LagMax, c.lagMax)
		s.Busy += c.busy
		s.Delays = append(s.Delays, c.delays...)
		c.mu.Unlock()
	}

	slices.Sort(s.Delays)
	return s
}

func (r *rig) closeRig() { r.e.Close() }
