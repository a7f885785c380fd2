package engine

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// Frontend is a frontend's session. Its methods may be called from any goroutine.
type Frontend struct {
	e      *Engine
	number uint32
	window uint32
	hello  wire.FrontendHello
	port   FrontendPort
	closed atomic.Bool
	spare  spare
}

// OpenFrontend opens a session. Before it returns, the catalogue goes to the port and the frontend's address to every
// backend.
func (e *Engine) OpenFrontend(h wire.FrontendHello, port FrontendPort) (*Frontend, error) {
	f := &Frontend{e: e, hello: h, port: port}
	var err error
	if merr := e.runInRegistry(func() { err = e.reg.addFrontend(f) }); merr != nil {
		return nil, merr
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Number names the session on the wire.
func (f *Frontend) Number() uint32 { return f.number }

// Submit offers requests. A refused request gets an Outcome at the port, like every request that ends without an
// output. It returns false if the session is closed.
func (f *Frontend) Submit(m []wire.Submit) bool {
	e := f.e
	if f.closed.Load() || e.closed.Load() {
		return false
	}

	t := e.beginTurn(&f.spare)

	// Each partition's lock is taken once, however the requests are mixed. With one partition all requests belong to
	// it.
	if len(e.parts) == 1 {
		e.parts[0].submit(e, t, f, m)
	} else {
		var todo uint64
		for i := range m {
			todo |= 1 << (e.split.of(m[i].Model) & 63)
		}
		for ; todo != 0; todo &= todo - 1 {
			e.parts[bits.TrailingZeros64(todo)].submit(e, t, f, m)
		}
	}

	e.finishTurn(t)
	return true
}

// submit takes the requests of m that belong to the partition.
func (p *partition) submit(e *Engine, t *turn, f *Frontend, m []wire.Submit) {
	p.enter(t)

	// A session that closed since Submit looked may have been purged here already: nobody would end these requests, and
	// their window could replace that of the next session in its slot.
	if f.closed.Load() {
		p.mu.Unlock()
		return
	}

	s := p.openIDWindow(f)
	arrivals := p.s.Arrive(t.now)

	// While some requests are accepted, the memory that the next ones need is on its way.
	var groups [2]requestGroup
	present, next := &groups[0], &groups[1]
	rest := p.fillGroup(e, next, &arrivals, t.now, m)
	for next.n > 0 {
		present, next = next, present
		rest = p.fillGroup(e, next, &arrivals, t.now, rest)
		p.acceptGroup(t, s, &arrivals, present)
	}

	// Work that is due anyway is done under this lock instead of waking its loop.
	if sched.Time(p.wake.Load()) <= t.now {
		p.s.Advance(t.now)
	}

	p.collectOutputs(e, t)
	p.mu.Unlock()
}

// Cancel withdraws requests. A queued request ends with the outcome Canceled; the backend answers one that is in a
// batch. It returns false if the session is closed.
func (f *Frontend) Cancel(m []wire.Cancel) bool {
	e := f.e
	if f.closed.Load() || e.closed.Load() {
		return false
	}

	// Each partition is locked once for all of its requests.
	t := e.beginTurn(&f.spare)
	var todo uint64
	for i := range m {
		todo |= 1 << e.split.of(m[i].Model)
	}

	for ; todo != 0; todo &= todo - 1 {
		p := e.parts[bits.TrailingZeros64(todo)]
		p.enter(t)
		for i := range m {
			if e.split.of(m[i].Model) == p.number {
				p.cancelRequest(t, f.number, &m[i])
			}
		}
		p.collectOutputs(e, t)
		p.mu.Unlock()
	}

	e.finishTurn(t)
	return true
}

// Close ends the session: its queued requests are forgotten, and backends are told.
func (f *Frontend) Close() {
	if f.closed.Swap(true) {
		return
	}
	e := f.e

	// From here on no outcome goes to the port: queued requests end without an answer.
	e.fronts[f.number%FrontendsMax].Store(nil)
	for _, p := range e.parts {
		for at, more := 0, true; more; more = at != 0 {
			t := e.beginTurn(&f.spare)
			p.enter(t)
			at = p.purgeRequests(t, f.number, at)
			p.collectOutputs(e, t)
			p.mu.Unlock()
			e.finishTurn(t)
		}
	}
	_ = e.runInRegistry(func() { e.reg.removeFrontend(f) })
}

// Backend is a backend's session. Its methods may be called from any goroutine.
type Backend struct {
	e      *Engine
	hello  wire.BackendHello
	name   string       // the name in the hello, or a unique one made from it
	node   uint32       // its number in descriptors; 0: it offers no memory. Owned by the registry
	group  sched.Groups // the group that requests avoid which it could not serve
	port   BackendPort
	gpus   []*gpu   // owned by the registry, as are hello.Models and the fields below
	ids    []uint32 // by number in hello.Models: the model's id; noModel: no GPU has it loaded, or it cannot be served
	failed []uint32 // the ids of the models in hello.Failed that nobody served at the time
	works  []*spareWork
	owner  uint32 // its number in the WorkIDs of its spare work; 0: it never had any

	withheld map[resident]bool // loaded or loading, and not offered because of a plan
	leaving  map[resident]bool // not offered, and its memory is not free yet

	measured atomic.Pointer[[][]time.Duration] // ℓ(b) by number in hello.Models, for partitions

	dead   atomic.Bool // gone or going: it gets no batches
	hung   atomic.Bool // its watchdog fired
	closed atomic.Bool
	spare  spare

	mu    sync.Mutex // no other lock is taken under it
	trips delays     // round trips of pings
	fetch delays     // fetch time per input
	// The kernel's round trips to the backend, ns: smoothed mean and mean deviation. 0: unknown.
	tripMean, tripVariance int64
}

// OpenBackend opens a session. Its GPUs may get batches before OpenBackend returns.
func (e *Engine) OpenBackend(h wire.BackendHello, port BackendPort) (*Backend, error) {
	b := &Backend{e: e, hello: h, port: port}
	var err error
	if merr := e.runInRegistry(func() { err = e.reg.addBackend(b) }); merr != nil {
		return nil, merr
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Done reports batches. Reports of batches that are not in flight are counted and ignored. It returns false if the
// session is closed.
func (b *Backend) Done(m []wire.Done) bool {
	e := b.e
	if b.closed.Load() || e.closed.Load() {
		return false
	}
	t := e.beginTurn(&b.spare)

	// The number comes from the backend: it must not index beyond the partitions.
	n := uint32(len(e.parts))
	var todo uint64
	for i := range m {
		if p := m[i].Batch >> 56; p < uint64(n) {
			todo |= 1 << p
		}
	}

	for ; todo != 0; todo &= todo - 1 {
		p := e.parts[bits.TrailingZeros64(todo)]
		p.enter(t)
		for rest := m; len(rest) > 0; {
			some := rest[:min(len(rest), reportsPrefetched)]
			rest = rest[len(some):]
			p.prefetchFlights(some)
			for i := range some {
				if some[i].Batch>>56 == uint64(p.number) {
					p.completeFlight(e, t, b, &some[i])
				}
			}
		}
		p.mu.Unlock()
	}

	// Delays have a lock of their own, taken once per message without a partition's.
	b.mu.Lock()
	for _, ns := range t.fetches {
		b.fetch.add(ns)
	}
	b.mu.Unlock()
	t.fetches = t.fetches[:0]

	e.finishTurn(t)
	return true
}

// RoundTrip records a measured round trip to the backend, in ns.
func (b *Backend) RoundTrip(ns int64) {
	b.mu.Lock()
	b.trips.add(ns)
	b.mu.Unlock()
}

// NetworkTrip records the kernel's round trips to the backend: smoothed mean and mean deviation.
func (b *Backend) NetworkTrip(mean, variance time.Duration) {
	b.mu.Lock()
	b.tripMean, b.tripVariance = mean.Nanoseconds(), variance.Nanoseconds()
	b.mu.Unlock()
}

// Close ends the session: requests on its GPUs go to others or end with BackendLost.
func (b *Backend) Close() {
	if b.closed.Swap(true) {
		return
	}
	_ = b.e.runInRegistry(func() { b.e.reg.removeBackend(b) })
}

// noModel is the id of no model.
const noModel = ^uint32(0)
