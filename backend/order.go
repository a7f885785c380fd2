package backend

import (
	"errors"
	"sync/atomic"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// order is a batch from Execute to Done. Times are on the backend's clock.
type order struct {
	gpu     *gpu
	batch   uint64
	session uint64 // of the link that sent it; Done is for that one only
	model   *device.Model
	items   []item
	came    time.Duration
	start   time.Duration // what the scheduler counts on; the batch may begin earlier
	latest  time.Duration // a later start misses the earliest deadline

	slot   *device.Slot // inputs land here; nil while waiting in line
	run    *device.Slot // the batch runs here: slot, or another if rows had to be moved
	groups []*group     // one per frontend; those beyond the length keep their memory
	reads  []rdma.Read  // of all groups
	rowOf  []int32      // reads[i] is part of items[rowOf[i]]

	planned atomic.Bool   // groups and items' groups are set
	ahead   atomic.Bool   // some rows may be on their way from slot to the GPU
	pending atomic.Int32  // groups under way, and one while they are being posted
	fetched atomic.Int64  // when pending became 0
	ready   chan struct{} // holds a token once pending is 0
	claims  atomic.Int32  // the fetch and the reply hold the order; the last one recycles it
	lead    chan struct{} // holds a token once all batches before it on the GPU have ended

	answered bool // by the watchdog, while the executor had it; guarded by gpu.mu

	// The GPU's goroutine's, then the replying one's.
	rows     int // of run, after rows that failed were left out
	began    time.Duration
	ended    time.Duration
	failures []wire.ItemFailure
}

// item is one request of an order.
type item struct {
	peer     *peer
	id       uint64
	deadline time.Duration
	input    wire.Descriptor
	group    *group // nil: never asked for, its descriptor makes no sense
	read     int32  // the first of its reads
	told     bool   // the GPU has been told of some of it; this and lost are written before group.over
	lost     bool   // its read failed
	reason   sched.Reason
	row      int32 // in run, if reason is none
}

// group is what an order reads from one frontend.
type group struct {
	o        *order
	peer     *peer
	from, to int // in o.reads
	chains   atomic.Int32
	over     atomic.Bool // all reads have ended
	done     func(error) // bound once: the first chain's
	each     func(int)   // likewise
}

func newOrder(g *gpu) *order {
	return &order{gpu: g, ready: make(chan struct{}, 1), lead: make(chan struct{}, 1)}
}

// reset takes over an Execute that Backend.check has passed.
func (o *order) reset(b *Backend, e *wire.Execute, now time.Duration, session uint64) {
	o.batch, o.session, o.model = e.Batch, session, b.models[e.Model]
	o.came = now
	o.start = now + min(time.Duration(e.Start), startMax)
	o.latest = now + min(time.Duration(e.Latest), startMax)
	o.slot, o.run, o.rows, o.began, o.ended = nil, nil, 0, 0, 0
	o.items, o.groups, o.reads, o.rowOf, o.failures = o.items[:0], o.groups[:0], o.reads[:0], o.rowOf[:0], o.failures[:0]
	for _, it := range e.Items {
		o.items = append(o.items, item{peer: b.peers.find(it.Frontend), id: it.ID, input: it.Input,
			deadline: now + min(time.Duration(it.Budget)*time.Microsecond, budgetMax)})
	}
	o.planned.Store(false)
	o.ahead.Store(false)
	o.pending.Store(1)
	o.claims.Store(2)
	o.fetched.Store(0)
	o.answered = false
	for _, c := range []chan struct{}{o.ready, o.lead} {
		select {
		case <-c:
		default:
		}
	}
}

// lastDeadline is after which nobody wants the batch any more.
func (o *order) lastDeadline() time.Duration {
	last := time.Duration(0)
	for i := range o.items {
		if o.items[i].reason == sched.ReasonNone {
			last = max(last, o.items[i].deadline)
		}
	}
	return last
}

// fail ends the requests that have no reason yet.
func (o *order) fail(r sched.Reason) {
	for i := range o.items {
		if o.items[i].reason == sched.ReasonNone {
			o.items[i].reason = r
		}
	}
}

// fetch posts the reads into o.slot. Called once, by whoever gave the order its slot.
func (o *order) fetch() {
	for i := range o.items {
		it := &o.items[i]
		if it.peer == nil || !o.model.Takes(int(it.input.Length)) {
			continue
		}
		if it.group == nil {
			o.plan(i)
		}
	}
	o.planned.Store(true)
	for _, g := range o.groups {
		o.pending.Add(1)
		g.peer.read(g)
	}
	o.arrived()
}

// there reports whether the whole row of an item has arrived.
func (o *order) there(it *item) bool {
	return o.planned.Load() && it.group != nil && it.group.over.Load() && !it.lost
}

// plan makes the group of items[first]'s frontend.
func (o *order) plan(first int) {
	n := len(o.groups)
	if n < cap(o.groups) && o.groups[:n+1][n] != nil {
		o.groups = o.groups[:n+1]
	} else {
		g := &group{o: o}
		g.done, g.each = g.finish, func(i int) { g.landed(g.from + i) }
		o.groups = append(o.groups, g)
	}
	g := o.groups[n]
	g.peer, g.from = o.items[first].peer, len(o.reads)
	g.over.Store(false)
	for i := first; i < len(o.items); i++ {
		it := &o.items[i]
		if it.peer != g.peer || !o.model.Takes(int(it.input.Length)) {
			continue
		}
		it.group, it.read = g, int32(len(o.reads))
		if o.model.Varies {
			dst, _ := device.SetPacked(o.slot.InputRow(o.model, 0, i), int(it.input.Length)) // it takes that many
			o.reads = append(o.reads, rdma.Read{Dst: dst, Src: rdma.Remote{Key: it.input.Key, Offset: uint64(it.input.Offset), Length: it.input.Length}})
			o.rowOf = append(o.rowOf, int32(i))
			continue
		}
		for k := range o.model.Inputs {
			t := &o.model.Inputs[k]
			o.reads = append(o.reads, rdma.Read{Dst: o.slot.InputRow(o.model, k, i),
				Src: rdma.Remote{Key: it.input.Key, Offset: uint64(it.input.Offset) + uint64(t.Offset), Length: uint32(t.Bytes)}})
			o.rowOf = append(o.rowOf, int32(i))
		}
	}
	g.to = len(o.reads)
}

// post reads the group's chains from p.
func (g *group) post(p *rdma.Peer) {
	if g.to-g.from <= rdma.ChainMax {
		g.chains.Store(1)
		g.read(p, g.o.reads[g.from:g.to], g.each, g.done)
		return
	}
	n := (g.to - g.from + rdma.ChainMax - 1) / rdma.ChainMax
	g.chains.Store(int32(n))
	for from := g.from; from < g.to; from += rdma.ChainMax {
		to := min(from+rdma.ChainMax, g.to)
		g.read(p, g.o.reads[from:to], func(i int) { g.landed(from + i) }, func(err error) { g.end(from, to, err) })
	}
}

// read posts one chain; who cannot take rows early is told of its end only.
func (g *group) read(p *rdma.Peer, chain []rdma.Read, each func(int), done func(error)) {
	if g.o.gpu.early == nil {
		each = nil
	}
	p.ReadEach(chain, each, done)
}

// landed hears that reads[i] has landed, before its chain has ended, and forwards it. Short reads are told of by
// the end only, and copied with the batch. The bytes may yet be disowned by the end: then the row is left out, and
// what was copied of it is forgotten (gpu.gather).
func (g *group) landed(i int) {
	o := g.o
	row := o.rowOf[i]
	it := &o.items[row]
	it.told = true
	o.ahead.Store(true)
	o.gpu.early.Arrived(o.model, o.slot, i-int(it.read), int(row), int(row)+1)
}

// finish is the end of a group that was read in one chain, or could not be read at all.
func (g *group) finish(err error) { g.end(g.from, g.to, err) }

// end notes what of reads[from:to] failed. Called by the data plane, once per chain.
func (g *group) end(from, to int, err error) {
	o := g.o
	if err != nil {
		var c *rdma.ChainError
		if errors.As(err, &c) {
			for _, i := range c.Failed {
				o.items[o.rowOf[from+i]].lost = true
			}
		} else {
			for _, i := range o.rowOf[from:to] {
				o.items[i].lost = true
			}
			g.peer.failed(err)
		}
	}
	if g.chains.Add(-1) == 0 {
		g.forward()
		g.over.Store(true)
		o.arrived()
	}
}

// forward lets the GPU have the rows that the group has brought and that it was told nothing of yet, while others
// are still on their way or the batch before runs.
func (g *group) forward() {
	o, e := g.o, g.o.gpu.early
	if e == nil {
		return
	}
	here := func(i int) bool { return o.items[i].group == g && !o.items[i].lost && !o.items[i].told }
	for i := 0; i < len(o.items); i++ {
		if !here(i) {
			continue
		}
		from := i
		for i < len(o.items) && here(i) {
			i++
		}
		o.ahead.Store(true)
		e.Arrived(o.model, o.slot, device.AllInputs, from, i)
	}
}

// recall makes the slot's rows free to change: the GPU reads none of them any more.
func (o *order) recall() {
	if o.ahead.Load() {
		o.gpu.early.Abandon(o.model, o.slot)
	}
}

// arrived takes one off pending; the last one wakes the GPU.
func (o *order) arrived() {
	if o.pending.Add(-1) != 0 {
		return
	}
	o.fetched.Store(int64(o.gpu.backend.now()))
	o.ready <- struct{}{}
	o.release()
}

// release gives up one of the two claims.
func (o *order) release() {
	if o.claims.Add(-1) == 0 {
		o.gpu.recycle(o)
	}
}
