package engine

import (
	crand "crypto/rand"
	"errors"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// Errors that end a session or refuse one.
var (
	ErrClosed = errors.New("engine closed")
	errHung   = errors.New("a batch was not reported done in time")
)

// Engine is the scheduler of one process. Its methods may be called from any goroutine.
type Engine struct {
	o     Options
	clock Clock
	log   *slog.Logger
	parts []*partition
	split split
	loops []*Loop
	turns sync.Pool

	rankers atomic.Pointer[[]*ranker]    // by sub-cluster; the registry appends
	fronts  []atomic.Pointer[Frontend]   // by the number's low bits
	gpus    []atomic.Pointer[gpu]        // by GPUID
	models  atomic.Pointer[[]model.Info] // by model id; the registry replaces
	reg     registry

	planRecord atomic.Pointer[PlanRecord] // the registry replaces

	steps      atomic.Uint64 // steps of spare work that were ordered
	straySteps atomic.Uint64 // reported ends of steps that were not running

	commands chan func()
	stop     chan struct{}
	closed   atomic.Bool
	running  sync.WaitGroup
	house    atomic.Int64 // when housekeeping is due; Manual only
	prices   atomic.Int64 // the same of prices
}

// New starts an Engine. Close ends it.
func New(o Options) (*Engine, error) {
	if err := o.checkOptions(); err != nil {
		return nil, err
	}
	e := &Engine{o: o, clock: o.Clock, log: o.Logger, fronts: make([]atomic.Pointer[Frontend], FrontendsMax),
		gpus: make([]atomic.Pointer[gpu], o.GPUs), commands: make(chan func()), stop: make(chan struct{})}

	e.split = newSplit(o.Partitions)
	e.turns.New = func() any { return new(turn) }
	e.models.Store(new([]model.Info))
	so := sched.Options{Ctrl: sched.Duration(o.Ctrl), Data: sched.Duration(o.Data), Prompt: o.Prompt}
	// Unserved models are in sub-cluster 0, which never has GPUs.
	e.rankers.Store(&[]*ranker{{s: sched.NewRanker(0, so)}})
	e.reg.start(e)

	for i := range o.Cores {
		l, err := newLoop(e, i)
		if err != nil {
			return nil, err
		}
		e.loops = append(e.loops, l)
	}

	// Partitions are assigned to the loops round robin, as are sub-clusters.
	for i := range o.Partitions {
		so.Number, so.Memory = uint16(i+1), newBlocks(o.RequestsMax).takeRequests
		p := &partition{number: uint32(i), loop: e.loops[i%o.Cores], s: sched.NewPartition(so), liveMax: o.RequestsMax, overruns: []*overrun{{}}, judged: 1}
		p.overruns[0].judged = &p.judged

		if !o.Manual { // virtual time wakes exactly on time
			var seed [32]byte
			_, _ = crand.Read(seed[:]) // never fails
			p.gens = rand.NewChaCha8(seed)
			p.overruns[0].setPercentile(0, int64(limits.OverrunLeast))
		}
		p.wake.Store(int64(sched.Never))
		p.loop.parts = append(p.loop.parts, p)
		e.parts = append(e.parts, p)
	}

	(*e.rankers.Load())[0].loop = e.loops[0]
	(*e.rankers.Load())[0].wake.Store(int64(sched.Never))

	// Threads start last: they read the state above without a lock.
	if !o.Manual {
		e.running.Add(1 + len(e.loops))
		go e.keepHouse()
		for _, l := range e.loops {
			go l.runLoop()
		}
	}
	return e, nil
}

// Close ends the loops. Sessions get no more messages; queued requests are forgotten.
func (e *Engine) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	close(e.stop)

	// A sleeping loop does not notice closed by itself.
	for _, l := range e.loops {
		l.wakeNow()
	}
	e.running.Wait()

	for _, l := range e.loops {
		l.closeLoop()
	}
	return nil
}

// Models returns the catalogue. The caller must not change it.
func (e *Engine) Models() []model.Info { return *e.models.Load() }

// Now reads the engine's clock.
func (e *Engine) Now() sched.Time { return e.clock.Now() }

func (e *Engine) partition(m sched.ModelID) *partition { return e.parts[e.split.of(uint32(m))] }

// split maps a model to its partition: its id modulo n, by two multiplications. Every request needs it, and a
// division would take as long as the rest of Submit. (Lemire, Kaser and Kurz, "Faster remainder by direct
// computation", 2019.)
type split struct{ n, inverse uint64 }

func newSplit(n int) split { return split{uint64(n), ^uint64(0)/uint64(n) + 1} }

func (s split) of(model uint32) uint32 {
	r, _ := bits.Mul64(s.inverse*uint64(model), s.n)
	return uint32(r)
}

func (e *Engine) ranker(sub uint32) *ranker { return (*e.rankers.Load())[sub] }

func (e *Engine) frontend(number uint32) *Frontend {
	f := e.fronts[number%FrontendsMax].Load()

	// The slot may belong to another session by now.
	if f == nil || f.number != number {
		return nil
	}
	return f
}

func (e *Engine) gpu(id sched.GPUID) *gpu {
	if int(id) >= len(e.gpus) {
		return nil
	}
	return e.gpus[id].Load()
}

// runInRegistry runs f on the registry's goroutine and waits for it. No lock may be held.
func (e *Engine) runInRegistry(f func()) error {
	// In virtual time the caller's goroutine is the registry's.
	if e.o.Manual {
		f()
		return nil
	}

	done := make(chan struct{})
	select {
	case e.commands <- func() { f(); close(done) }:
		<-done
		return nil
	case <-e.stop:
		return ErrClosed
	}
}

// keepHouse is the goroutine that owns the registry.
func (e *Engine) keepHouse() {
	defer e.running.Done()
	t, prices := time.NewTicker(houseEvery), time.NewTimer(houseEvery)
	defer t.Stop()
	defer prices.Stop()
	for {
		select {
		case <-e.stop:
			return
		case f := <-e.commands:
			f()
		case <-t.C:
			e.keepUp(e.clock.Now())
		case <-prices.C:
			prices.Reset(time.Duration(e.renewPrices(e.clock.Now())))
		}
	}
}

// renewPrices puts new prices in force, and returns the time until the next ones. While no service has a choice there are none,
// and this is only looked at.
func (e *Engine) renewPrices(now sched.Time) sched.Duration {
	e.reg.pricing.renewPrices(now)
	if len(e.reg.pricing.bidders) == 0 {
		return sched.Duration(houseEvery)
	}
	return sched.Duration(plan.PricePeriod)
}

// keepUp does the other periodic work: watchdogs, network delays, plans and sizes.
func (e *Engine) keepUp(now sched.Time) {
	for _, p := range e.parts {
		t := e.beginAt(&e.reg.spare, now)
		p.findSilent(t)
		e.finishTurn(t)
	}

	e.reg.applyDelays(now)
	e.reg.shareCrowds()
	e.reg.renewAwaited()
	e.reg.endOverdueCommands(now)

	// A plan that was heard of continues before a new one may begin.
	e.reg.resumePlan(now)
	e.reg.advanceRollout(now)
	e.reg.planEpoch(now)
	e.reg.adviseSizes(now)
}

// Poll runs everything that is due, in a deterministic order, and reports whether anything was. Only with
// Options.Manual.
func (e *Engine) Poll(now sched.Time) (worked bool) {
	for _, l := range e.loops {
		worked = l.Poll(now) || worked
	}
	if due := sched.Time(e.house.Load()); now >= due {
		e.house.Store(int64(now.Add(sched.Duration(houseEvery))))
		e.keepUp(now)
	}
	if now >= sched.Time(e.prices.Load()) {
		e.prices.Store(int64(now.Add(e.renewPrices(now))))
	}
	return worked
}

// Loops returns the loops, so that a driver can poll each from its own thread once the sessions are open. Only with
// Options.Manual.
func (e *Engine) Loops() []*Loop { return e.loops }

// NextWake returns the latest time at which Poll must be called. Only with Options.Manual.
func (e *Engine) NextWake() sched.Time {
	at := sched.Time(min(e.house.Load(), e.prices.Load()))
	for _, l := range e.loops {
		at = min(at, l.NextWake())
	}
	return at
}
