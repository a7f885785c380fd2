package backend

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

const (
	ordersMax  = 8                    // batches of one GPU at a time; the scheduler sends at most 3
	slotsEach  = 4                    // running, two being fetched, one being sent
	startMax   = time.Minute          // no start is further ahead
	budgetMax  = time.Hour            // of a request; longer ones count as this
	fetchGrace = 2 * time.Millisecond // beyond the latest start, before missing rows are given up
)

// gpu is one executor with its slots, orders and goroutines.
type gpu struct {
	backend  *Backend
	number   uint32
	name     string
	core     int // to pin to, -1: none
	executor device.Executor
	early    device.Early // the executor, if it takes rows ahead of their batch; else nil
	queue    chan *order  // accepted, in the scheduler's order
	sending  chan *order  // executed while more was due
	wait     sync.WaitGroup
	lost     atomic.Bool // the executor said so
	hung     atomic.Bool // a batch does not end

	mu      sync.Mutex
	slots   []*device.Slot // free
	orders  []*order       // free
	line    []*order       // waiting for a slot, oldest first
	running *order         // in Execute; nil once the watchdog has given it back
	dueBy   time.Duration  // when running counts as hanging
	buffers []*rdma.Buffer // the slots' memory

	counts counts
}

func newGPU(b *Backend, number int, o GPU) *gpu {
	g := &gpu{backend: b, number: uint32(number), name: o.Name, core: o.Core, executor: o.Executor,
		queue: make(chan *order, ordersMax), sending: make(chan *order, ordersMax)}
	g.early, _ = o.Executor.(device.Early)
	for range ordersMax {
		g.orders = append(g.orders, newOrder(g))
	}
	g.line = make([]*order, 0, ordersMax)
	return g
}

// allocate makes the slots of memory that the data plane can read into.
func (g *gpu) allocate(size int) error {
	for i := range slotsEach {
		buf, err := g.backend.node.Alloc(device.PagedBytes(size))
		if err != nil {
			return fmt.Errorf("%s: slot %d of %d bytes: %w", g.name, i, size, err)
		}
		g.buffers = append(g.buffers, buf)
		g.slots = append(g.slots, device.NewSlot(i, device.Pages(buf.Bytes())))
	}
	return nil
}

// accept takes a batch over and starts to fetch it, if a slot is free. The link's goroutine only.
func (g *gpu) accept(e *wire.Execute, now time.Duration, session uint64) bool {
	g.mu.Lock()
	n := len(g.orders)
	if n == 0 {
		g.mu.Unlock()
		return false
	}
	o := g.orders[n-1]
	g.orders = g.orders[:n-1]
	g.mu.Unlock()
	o.reset(g.backend, e, now, session)
	g.mu.Lock()
	g.line = append(g.line, o)
	next := g.nextFetch()
	g.mu.Unlock()
	if next != nil {
		next.fetch()
	}
	g.queue <- o // has room for every order there is; last, so that the GPU wakes up to rows that are there
	return true
}

// nextFetch gives the first order in line a slot, if there are both. g.mu is held.
func (g *gpu) nextFetch() *order {
	if len(g.line) == 0 || len(g.slots) == 0 {
		return nil
	}
	o := g.line[0]
	g.line = append(g.line[:0], g.line[1:]...)
	n := len(g.slots)
	o.slot = g.slots[n-1]
	g.slots = g.slots[:n-1]
	return o
}

// free gives slots back and starts the fetches that waited for them.
func (g *gpu) free(a, b *device.Slot) {
	g.mu.Lock()
	if a != nil {
		g.slots = append(g.slots, a)
	}
	if b != nil && b != a {
		g.slots = append(g.slots, b)
	}
	first, second := g.nextFetch(), g.nextFetch()
	g.mu.Unlock()
	if first != nil {
		first.fetch()
	}
	if second != nil {
		second.fetch()
	}
}

// recycle takes back an order that nobody holds any more.
func (g *gpu) recycle(o *order) {
	o.recall()
	slot, run := o.slot, o.run
	g.mu.Lock()
	g.orders = append(g.orders, o)
	g.mu.Unlock()
	g.free(slot, run)
	g.backend.live.Add(-1)
}

// serveAll is the GPU's goroutine.
func (g *gpu) serveAll() {
	defer g.wait.Done()
	if g.core >= 0 {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := pin(g.core); err != nil {
			g.backend.log.Warn("executor is not pinned", "gpu", g.name, "core", g.core, "err", err)
		}
	}
	patience := time.NewTimer(time.Hour)
	defer patience.Stop()
	r := newReplier(g)
	for o := range g.queue {
		switch answered := g.serve(o, patience); {
		case answered:
			o.release()
		case len(g.queue) == 0:
			r.reply(o)
		default:
			g.sending <- o // has room for every order there is
		}
	}
	close(g.sending)
}

// serve runs an order to its end on the GPU: after it every request has an output or a reason. It
// reports whether the watchdog has answered the order already. The batch begins as soon as its inputs
// are there, even before Start: its rows are final, so the GPU could only idle until then, and what
// the fetch took less than the scheduler allowed for goes to the deadlines (decision 0040).
func (g *gpu) serve(o *order, patience *time.Timer) (answered bool) {
	b := g.backend
	if o.session == b.session.Load() {
		g.await(o, patience)
		if !g.gather(o) {
			return false
		}
	} else {
		g.cancelFetch(o)
	}
	o.began = b.now()
	switch {
	case o.session != b.session.Load():
		o.fail(sched.BackendLost)
	case g.lost.Load():
		o.fail(sched.NoBackend)
	case o.began+usually(o.model, o.rows) > o.lastDeadline():
		o.fail(sched.DeadlineCannotBeMet)
	default:
		return g.execute(o)
	}
	return false
}

// usually is what a batch takes as a rule: ℓ(b) is a high percentile, and a result that is late by
// less than a scheduler's or a timer's jitter is still of use to its caller.
func usually(m *device.Model, rows int) time.Duration {
	l := m.Profile.Exec(rows)
	return l - l/8
}

// await returns when every row is there or has failed, or when to wait longer is of no use.
func (g *gpu) await(o *order, patience *time.Timer) {
	if o.fetched.Load() != 0 {
		return
	}
	end := max(o.latest, o.start) + fetchGrace
	for {
		patience.Reset(end - g.backend.now())
		select {
		case <-o.ready:
			return
		case <-patience.C:
		}
		last := o.lastDeadline() - o.model.Profile.Exec(1)
		if o.anyRow() || g.backend.now() >= last {
			return
		}
		end = last
	}
}

// anyRow reports whether some row has arrived.
func (o *order) anyRow() bool {
	for i := range o.items {
		if o.there(&o.items[i]) {
			return true
		}
	}
	return false
}

// cancelFetch gives up what has not been read. It reports whether nothing is under way any more.
func (g *gpu) cancelFetch(o *order) bool {
	g.mu.Lock()
	waits := o.slot == nil
	if waits {
		for i, other := range g.line {
			if other == o {
				g.line = append(g.line[:i], g.line[i+1:]...)
				break
			}
		}
	}
	g.mu.Unlock()
	if waits {
		o.arrived() // instead of fetch, which will not come
		return true
	}
	if o.planned.Load() {
		for _, gr := range o.groups {
			if !gr.over.Load() {
				gr.peer.withdraw(gr)
			}
		}
	}
	return o.fetched.Load() != 0
}

// gather sees that the rows of the batch lie together, leaving out those that could not be fetched.
// It reports whether any row is left.
func (g *gpu) gather(o *order) bool {
	over := o.fetched.Load() != 0 || g.cancelFetch(o)
	missing := 0
	for i := range o.items {
		it := &o.items[i]
		if it.row = int32(i); !o.there(it) {
			it.reason = sched.InputUnavailable
			missing++
		}
	}
	o.run, o.rows = o.slot, len(o.items)-missing
	if missing == 0 || o.rows == 0 {
		return o.rows > 0
	}
	if !over { // the slot may still be written to: run elsewhere
		if o.run = g.takeSlot(); o.run == nil {
			o.fail(sched.InputUnavailable)
			return false
		}
	}
	if o.run == o.slot {
		o.recall()
	}
	to := 0
	for i := range o.items {
		it := &o.items[i]
		if it.reason != sched.ReasonNone {
			continue
		}
		if o.run != o.slot || to != i {
			o.run.CopyRow(o.model, to, o.slot, i)
		}
		it.row = int32(to)
		to++
	}
	return true
}

func (g *gpu) takeSlot() *device.Slot {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.slots)
	if n == 0 {
		return nil
	}
	s := g.slots[n-1]
	g.slots = g.slots[:n-1]
	return s
}

// failUnanswered ends the requests whose packed rows have no output.
func (o *order) failUnanswered() {
	for i := range o.items {
		it := &o.items[i]
		if it.reason != sched.ReasonNone {
			continue
		}
		if _, ok := device.Packed(o.run.OutputRow(o.model, 0, int(it.row))); !ok {
			it.reason = sched.ExecutionFailed
		}
	}
}

// execute runs the batch. It reports whether the watchdog answered it meanwhile.
func (g *gpu) execute(o *order) (answered bool) {
	b := g.backend
	g.watch(o)
	err := g.executor.Execute(device.Batch{Model: o.model, Slot: o.run, Rows: o.rows})
	ended := b.now()
	g.counts.busy.Add(int64(ended - o.began))
	lost := errors.Is(err, device.ErrLost)
	if lost && !g.lost.Swap(true) { // before the watchdog's verdict goes: nothing may be sent here in between
		b.log.Error("GPU lost: others get its requests, it serves nothing until the backend is started again", "gpu", g.name)
	}
	if answered = g.unwatch(); !answered {
		o.ended = ended
	}
	if err == nil {
		if o.model.Varies && !answered {
			o.failUnanswered()
		}
		return answered
	}
	b.log.Error("batch failed", "gpu", g.name, "model", o.model.Name, "rows", o.rows, "err", err)
	reason := sched.ExecutionFailed
	if lost {
		reason = sched.BackendLost
	}
	if !answered {
		o.fail(reason)
	}
	return answered
}
