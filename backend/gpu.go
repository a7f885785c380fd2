package backend

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/limits"
	"downbeat.dev/rdma"
)

const (
	ordersMax = limits.Orders
	slotsEach = limits.Slots
	startMax  = time.Minute           // limit of a start's distance
	budgetMax = time.Hour             // longer budgets count as this
	readMin   = 10 * time.Millisecond // least time of a read, even if all deadlines have passed
)

// gpu is one GPU or core with its executors, slots, orders and goroutines.
type gpu struct {
	backend   *Backend
	number    uint32
	name      string
	core      int                      // to pin to; -1: none
	device    int                      // the number of the device of which it is a lane; -1: it is a device
	executors []device.Executor        // a model runs on the first that supports it
	ahead     bool                     // batches are submitted while others run
	routes    atomic.Pointer[[]*route] // by the model's number; nil: not loaded here. Replaced by placements
	sending   chan *order              // executed while more was due; without ahead only
	freed     chan struct{}            // a token when the executors have one batch less
	slotFreed chan struct{}            // a token when a slot is free
	wait      sync.WaitGroup
	lost      atomic.Bool  // an executor said so
	hung      atomic.Bool  // a batch does not end
	stuck     atomic.Int32 // calls of loads that were given up and have not returned
	inRow     atomic.Int64 // batches that have failed since the last that did not

	// Owned by one placement at a time.
	slotBytes int // least size of every slot

	mu       sync.Mutex
	more     sync.Cond                     // for changes of due, deciding, closed and steps
	slots    []*device.Slot                // free
	orders   []*order                      // free
	line     []*order                      // waiting for a slot, oldest first
	due      []*order                      // accepted and not begun, in the scheduler's order
	deciding bool                          // a goroutine has the first of due and has not passed it to an executor yet, or runs alone
	steps    int                           // goroutines that wait to run alone
	buffers  map[*device.Slot]*rdma.Buffer // the slots' memory; changed by one placement at a time
	closed   bool
	heldNow  int           // slots that are held, see offer.go
	heldMore int           // slots beyond slotsEach
	growing  bool          // another slot is being made, or could not be
	flying   []*order      // passed to an executor, oldest first
	dueBy    time.Duration // when the first of flying counts as hanging
	freeAt   time.Duration // when the last of flying should have ended
	landed   time.Duration // when a batch has last ended
	failSaid time.Time     // of the last log line about failing batches
	unsaid   int           // failing batches since

	counts counts
}

// newGPU makes the GPU that o describes; startLoops starts it.
func newGPU(b *Backend, number int, o GPU) *gpu {
	g := &gpu{backend: b, number: uint32(number), name: o.Name, core: o.Core, executors: o.Executors,
		sending: make(chan *order, ordersMax), freed: make(chan struct{}, 1), slotFreed: make(chan struct{}, 1), buffers: map[*device.Slot]*rdma.Buffer{}}
	if g.device = -1; o.Lanes > 1 {
		g.device = o.Device
	}
	g.more.L = &g.mu
	g.routes.Store(new([]*route))

	// A pinned executor runs its batches on its one pinned goroutine.
	g.ahead = o.Core < 0 && len(o.Executors) > 0 && o.Executors[0].Capabilities().Ahead

	// All orders are made here, so that serving allocates nothing.
	for range ordersMax {
		g.orders = append(g.orders, newOrder(g))
	}
	g.line, g.due = make([]*order, 0, ordersMax), make([]*order, 0, ordersMax)
	g.flying = make([]*order, 0, ordersMax)
	return g
}

// startLoops starts the goroutines.
func (g *gpu) startLoops() {
	if !g.ahead {
		g.wait.Add(2)
		go g.serveAll()
		go g.replyAll()
		return
	}
	g.wait.Add(slotsEach) // one for each batch that has a slot
	for range slotsEach {
		go g.serveAhead()
	}
}

// stopLoops waits for accepted orders and ends the goroutines.
func (g *gpu) stopLoops() {
	g.mu.Lock()
	g.closed = true
	g.more.Broadcast()
	g.mu.Unlock()
	g.wait.Wait()
}

// takeOrder returns the next order to decide about, once no other goroutine is deciding; nil at the end.
func (g *gpu) takeOrder() *order {
	g.mu.Lock()
	defer g.mu.Unlock()

	// One goroutine decides at a time, so that batches reach the executor in the scheduler's order.
	for len(g.due) == 0 || g.deciding {
		if g.closed && len(g.due) == 0 {
			return nil
		}
		g.more.Wait()
	}
	g.deciding = true
	return g.takeFirst()
}

// takeFirst takes the first of due. g.mu is held.
func (g *gpu) takeFirst() *order {
	o := g.due[0]
	g.due = append(g.due[:0], g.due[1:]...)
	return o
}

// endDeciding lets another goroutine take the next order. It reports whether there is one.
func (g *gpu) endDeciding() (more bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deciding = false

	// Signal wakes one waiter, which may be a step or a wait for the end; if there are such, wake all.
	switch more = len(g.due) > 0; {
	case g.closed || g.steps > 0:
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
		if err := pinThread(g.core); err != nil {
			g.backend.log.Warn("executor is not pinned", "gpu", g.name, "core", g.core, "err", err)
		}
	}

	patience := time.NewTimer(time.Hour)
	defer patience.Stop()
	r := newReplier(g)

	for o := g.takeOrder(); o != nil; o = g.takeOrder() {
		answered := g.collectInputs(o, patience) && g.mayBegin(o) && g.executeOrder(o)

		// With more to run, another goroutine sends the outputs; otherwise this one does.
		switch more := g.endDeciding(); {
		case answered:
			o.releaseClaim()
		case !more:
			r.replyTo(o)
		default:
			g.sending <- o // has room for all orders
		}
	}
	close(g.sending)
}
