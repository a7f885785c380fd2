package backend

import (
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
	slotsEach  = 4                    // one running, one behind it, one being fetched, one being sent
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
	early    device.Early  // the executor, if it takes rows ahead of their batch; else nil
	ahead    device.Ahead  // the executor, if it takes a batch while another runs; else nil
	sending  chan *order   // executed while more was due; without ahead only
	freed    chan struct{} // a token when the executor has one batch less
	wait     sync.WaitGroup
	lost     atomic.Bool // the executor said so
	hung     atomic.Bool // a batch does not end

	mu       sync.Mutex
	more     sync.Cond      // of due, deciding and closed
	slots    []*device.Slot // free
	orders   []*order       // free
	line     []*order       // waiting for a slot, oldest first
	due      []*order       // accepted and not begun, in the scheduler's order
	deciding bool           // somebody has taken the first of due and not handed it to the executor yet
	closed   bool
	flying   []*order       // handed to the executor, oldest first
	dueBy    time.Duration  // when the first of flying counts as hanging
	freeAt   time.Duration  // when the last of flying should have ended
	landed   time.Duration  // when a batch has last ended
	buffers  []*rdma.Buffer // the slots' memory

	aside int // models that its kernels do not support; set before anything runs

	counts counts
}

func newGPU(b *Backend, number int, o GPU) *gpu {
	g := &gpu{backend: b, number: uint32(number), name: o.Name, core: o.Core, executor: o.Executor,
		sending: make(chan *order, ordersMax), freed: make(chan struct{}, 1)}
	g.more.L = &g.mu
	g.early, _ = o.Executor.(device.Early)
	if o.Core < 0 { // what is pinned runs its batches on the one goroutine that is
		g.ahead, _ = o.Executor.(device.Ahead)
	}
	for range ordersMax {
		g.orders = append(g.orders, newOrder(g))
	}
	g.line, g.due = make([]*order, 0, ordersMax), make([]*order, 0, ordersMax)
	g.flying = make([]*order, 0, ordersMax)
	return g
}

// start starts the goroutines.
func (g *gpu) start() {
	if g.ahead == nil {
		g.wait.Add(2)
		go g.serveAll()
		go g.replyAll()
		return
	}
	g.wait.Add(slotsEach) // so that somebody is there for each batch that has a slot
	for range slotsEach {
		go g.serveAhead()
	}
}

// stop lets the goroutines end when what was accepted has ended, and waits for them.
func (g *gpu) stop() {
	g.mu.Lock()
	g.closed = true
	g.more.Broadcast()
	g.mu.Unlock()
	g.wait.Wait()
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
	g.mu.Lock()
	g.due = append(g.due, o) // last, so that the GPU wakes up to rows that are there
	g.more.Signal()
	g.mu.Unlock()
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

// take returns the next order to decide about, once nobody else decides; nil at the end.
func (g *gpu) take() *order {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.due) == 0 || g.deciding {
		if g.closed && len(g.due) == 0 {
			return nil
		}
		g.more.Wait()
	}
	g.deciding = true
	return g.first()
}

// first takes the first of due. g.mu is held.
func (g *gpu) first() *order {
	o := g.due[0]
	g.due = append(g.due[:0], g.due[1:]...)
	return o
}

// decided lets somebody else take the next order. It reports whether there is one.
func (g *gpu) decided() (more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deciding = false
	switch more = len(g.due) > 0; {
	case g.closed:
		g.more.Broadcast()
	case more:
		g.more.Signal()
	}
	return more
}

// serveAll is the goroutine of a GPU that takes one batch at a time.
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
	for o := g.take(); o != nil; o = g.take() {
		answered := g.collect(o, patience) && g.allow(o) && g.execute(o)
		switch more := g.decided(); {
		case answered:
			o.release()
		case !more:
			r.reply(o)
		default:
			g.sending <- o // has room for every order there is
		}
	}
	close(g.sending)
}

// collect waits for the inputs of an order and puts them together. It reports whether any request is left.
func (g *gpu) collect(o *order, patience *time.Timer) bool {
	switch {
	case o.session != g.backend.session.Load():
		o.fail(sched.BackendLost)
	case g.sick():
		o.fail(sched.NoBackend)
	default:
		g.await(o, patience)
		return g.gather(o)
	}
	g.cancelFetch(o)
	return false
}

// allow says whether an order may begin now: the GPU is well, the link that sent it is there, and somebody can
// use what comes out. A batch begins as soon as its inputs are there, even before Start: its rows are final, so
// the GPU could only idle until then, and what the fetch took less than the scheduler allowed for goes to the
// deadlines (decision 0040).
func (g *gpu) allow(o *order) bool {
	b := g.backend
	o.began = b.now()
	switch {
	case o.session != b.session.Load():
		o.fail(sched.BackendLost)
	case g.sick():
		o.fail(sched.NoBackend)
	case o.began+usually(o.model, o.rows) > o.lastDeadline():
		o.fail(sched.DeadlineCannotBeMet)
	default:
		return true
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
