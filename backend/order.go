package backend

import (
	"sync/atomic"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// order is a batch from Execute to Done. Times are on the backend's clock.
type order struct {
	gpu     *gpu
	batch   uint64
	answer  uint32 // wire.Execute.Answer
	session uint64 // of the link that sent it; Done goes to that link only
	route   *route
	model   *device.Model // the route's model
	items   []item
	came    time.Duration
	start   time.Duration // the scheduler's planned start; the batch may begin earlier
	latest  time.Duration // a later start misses the earliest deadline
	useful  time.Duration // the last deadline of all its requests: a read that ends later is useless
	posted  time.Duration // when its reads were posted; valid once planned

	slot   *device.Slot // inputs land here; nil while waiting in line
	run    *device.Slot // the batch runs here: slot, or another if rows had to be moved
	groups []*group     // one per source; elements beyond the length keep their memory
	reads  []rdma.Read  // of all groups
	rowOf  []int32      // reads[i] is part of items[rowOf[i]], or is parts[rowOf[i]], see group.parts

	// For requests whose inputs lie in several places, see compose.go.
	composed  bool         // there is such a request
	parts     []part       // of all such requests
	tables    *rdma.Buffer // their tables, while they are read
	tablesDue atomic.Int32 // groups of tables in progress, plus one while they are being posted
	held      bool         // peers read outputs in run, which no longer belongs to the order

	planned atomic.Bool   // groups and items' groups are set
	ahead   atomic.Bool   // some rows may be on their way from slot to the GPU
	pending atomic.Int32  // groups in progress, plus one while they are being posted
	fetched atomic.Int64  // when pending became 0
	ready   chan struct{} // holds a token once pending is 0
	claims  atomic.Int32  // the fetch and the reply hold the order; the last one recycles it
	lead    chan struct{} // holds a token once all earlier batches on the GPU have ended

	answered bool // by the watchdog, while the executor had it; guarded by gpu.mu

	// Owned by the GPU's goroutine, then by the replying one.
	rows     int // of run, without rows that failed
	began    time.Duration
	ended    time.Duration
	bad      []bool // by row of run: it failed alone; nil if the batch did not fail
	broken   bool   // the executor refused it as a whole: another GPU may run it
	failures []wire.ItemFailure
}

// item is one request of an order.
type item struct {
	source   *peer // the node in whose memory its input lies
	reply    *peer // the node that receives its answer
	id       uint64
	deadline time.Duration
	input    model.Descriptor
	group    *group // nil: never read, as its descriptor is invalid
	read     int32  // index of the first of its reads
	told     bool   // the GPU has some of it; this and lost are written before group.over
	lost     bool   // its read failed
	silent   bool   // its read failed because the frontend was silent; a frontend that refuses a key is not
	late     bool   // its read had not ended when the batch had to begin
	reason   model.Reason
	row      int32 // in run, if reason is none

	composed bool   // its input starts with a table
	from, to int32  // its parts
	hold     uint32 // the outputs to hold, one bit each
	lease    time.Duration
}

func newOrder(g *gpu) *order {
	return &order{gpu: g, ready: make(chan struct{}, 1), lead: make(chan struct{}, 1)}
}

// resetTo initialises an order with an Execute that Backend.check has passed.
func (o *order) resetTo(b *Backend, r *route, e *wire.Execute, now time.Duration, session uint64) {
	o.batch, o.answer, o.session, o.route, o.model = e.Batch, e.Answer, session, r, r.model

	o.came = now
	o.start = now + min(time.Duration(e.Start), startMax)
	o.latest = now + min(time.Duration(e.Latest), startMax)

	o.slot, o.run, o.rows, o.began, o.ended = nil, nil, 0, 0, 0
	o.items, o.groups, o.reads, o.rowOf, o.failures = o.items[:0], o.groups[:0], o.reads[:0], o.rowOf[:0], o.failures[:0]
	o.useful = now
	o.composed, o.held, o.parts = false, false, o.parts[:0]

	for _, it := range e.Items {
		// Budgets are relative, since hosts' clocks differ: deadlines count from the batch's arrival.
		deadline := now + min(time.Duration(it.Budget)*time.Microsecond, budgetMax)

		// The input lies with the request's frontend, or with a backend. If the frontend is gone, nobody wants it.
		frontend := b.peers.findPeer(it.Frontend)
		source := frontend
		composed := false
		if node := it.Input.Node(); node == model.Composed {
			composed, o.composed = true, true
		} else if node != 0 && frontend != nil {
			source = b.peers.findNode(node)
		}
		o.items = append(o.items, item{source: source, reply: frontend, id: it.ID, input: it.Input.InNode(), deadline: deadline, composed: composed})
		o.useful = max(o.useful, deadline)
	}

	o.planned.Store(false)
	o.ahead.Store(false)

	// One for posting the reads, so that reads that end early do not end the fetch.
	o.pending.Store(1)
	o.claims.Store(2)
	o.fetched.Store(0)
	o.answered, o.broken, o.bad = false, false, nil

	// Drop signals from the order's previous use.
	for _, c := range []chan struct{}{o.ready, o.lead} {
		select {
		case <-c:
		default:
		}
	}
}

// lastDeadline returns the time after which nobody wants the batch any more.
func (o *order) lastDeadline() time.Duration {
	last := time.Duration(0)
	for i := range o.items {
		if o.items[i].reason == model.ReasonNone {
			last = max(last, o.items[i].deadline)
		}
	}
	return last
}

// failRest ends the requests that have no reason yet.
func (o *order) failRest(r model.Reason) {
	for i := range o.items {
		if o.items[i].reason == model.ReasonNone {
			o.items[i].reason = r
		}
	}
}

// fetchInputs posts the reads into o.slot. It is called once, by the goroutine that gave the order its slot.
func (o *order) fetchInputs() {
	// A composed input's reads are known once its table has arrived.
	if o.composed {
		o.fetchTables()
		return
	}
	o.postReads()
}

// postReads posts the reads of inputs once all locations are known.
func (o *order) postReads() {
	for i := range o.items {
		if it := &o.items[i]; it.group == nil && o.isWhole(it) {
			o.planGroup(i)
		}
	}
	o.planParts()

	// Set before the first read may end, because its end measures from here.
	o.posted = o.gpu.backend.now()
	o.planned.Store(true)
	for _, g := range o.groups {
		o.pending.Add(1)
		g.source.readGroup(g)
	}
	o.noteArrived()
}

// isWhole reports whether an item's input lies in one piece, and can be read.
func (o *order) isWhole(it *item) bool {
	return it.source != nil && !it.composed && o.model.Takes(int(it.input.Length))
}

// isThere reports whether the whole row of an item has arrived.
func (o *order) isThere(it *item) bool {
	if it.composed {
		return o.planned.Load() && o.arePartsThere(it)
	}
	return o.planned.Load() && it.group != nil && it.group.over.Load() && !it.lost
}

// isAwaited reports whether an item's row has neither arrived nor failed yet.
func (o *order) isAwaited(it *item) bool {
	return !o.planned.Load() || it.group != nil && !it.group.over.Load()
}

// recallRows makes the slot's rows free to change: the GPU reads none of them any more.
func (o *order) recallRows() {
	if o.ahead.Load() {
		o.route.can.Early.Abandon(o.model, o.slot)
	}
}

// noteArrived decrements pending; the last call wakes the GPU.
func (o *order) noteArrived() {
	if o.pending.Add(-1) != 0 {
		return
	}

	// Stored before the token: the GPU's goroutine reads it when it wakes.
	o.fetched.Store(int64(o.gpu.backend.now()))
	o.ready <- struct{}{}
	o.releaseClaim()
}

// releaseClaim gives up one of the two claims.
func (o *order) releaseClaim() {
	if o.claims.Add(-1) == 0 {
		o.gpu.recycleOrder(o)
	}
}
