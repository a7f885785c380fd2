//go:build rdma && linux && cgo

package rdma

/*
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
	"unsafe"
)

// verbsPair is the queue pair to one peer. It reads the peer's segments one-sided: see verbs_read.go.
//
// What a peer can read: segments in which it could name a live key, whole, until it goes. Where the
// device has type 2 memory windows, each peer gets a window per segment, bound to its queue pair:
// its rkey is worth nothing to others. Otherwise the segment's own rkey is given out.
type verbsPair struct {
	conn *conn
	dev  *verbsDevice
	id   uint32
	end  C.db_end

	mu       sync.Mutex // protects what follows
	qp       unsafe.Pointer
	ready    bool // connected
	gone     bool
	segs     []grantedBody // the peer's, by index; those with slots are known
	asked    map[int]bool
	posted   []*verbsChain // in the order of posting
	waiting  []*verbsChain // no room in the send queue yet
	spare    []*verbsChain
	free     int // work requests that the send queue takes
	wrs      []C.db_wr
	one      C.db_wr       // of sendDirect
	draining bool          // fail has begun
	progress time.Duration // node time of the last completion, or of a post after none was due
	scratch  []byte        // entries land here; a ring, registered with its own key
	lkey     uint32
	next     int           // entry of scratch to use next
	turn     time.Duration // the node time that poll ends completions for: it will pump the pair; 0: it is not at it
	ended    *verbsChain   // to be kept at the next completion; owned by the loop
	rechecks uint64        // chains whose entries were read once more
	sends    []verbsSend   // under way, oldest first; one per send buffer
	sent     int           // buffers used so far: the next is sent % DB_SEND_COUNT
	windows  map[int]*verbsWindow
	binds    int // of windows, under way
}

type verbsWindow struct {
	mw   unsafe.Pointer
	rkey uint32
	key  uint64 // to be answered when bound
	seg  *segment
}

const (
	sendDepth   = 512
	partsMax    = 1 << 12         // reads of a device under way that are told of one by one: a quarter of its completion queue
	windowEvent = uint32(1) << 31 // in a completion's id: a window of that segment was bound
	sendEvent   = uint32(1) << 30 // the oldest message was taken
	eachEvent   = uint32(1) << 29 // that read of the oldest chain has landed
)

// newPair makes a queue pair in state INIT.
func (d *verbsDevice) newPair(c *conn) (*verbsPair, error) {
	p := &verbsPair{conn: c, dev: d, asked: map[int]bool{}, windows: map[int]*verbsWindow{}}
	depth := min(sendDepth, int(d.info.wr_max)-C.DB_SEND_COUNT)
	p.free, p.wrs = depth, make([]C.db_wr, 0, depth)
	var made C.db_pair_info
	bytes := depth * entryBytes
	rc := C.db_pair(d.handle, C.int(d.port), C.uint32_t(depth), C.uint32_t(bytes), &made)
	if err := checkMemory(rc, "create queue pair", bytes+C.DB_SEND_COUNT*C.DB_RECV_BYTES); err != nil {
		return nil, err
	}
	p.qp, p.lkey = made.qp, uint32(made.scratch_lkey)
	p.scratch = unsafe.Slice((*byte)(made.scratch), bytes+C.DB_SEND_COUNT*C.DB_RECV_BYTES)
	p.end = C.db_end{qpn: made.qpn, psn: C.uint32_t(rand.Uint32() & 0xffffff), lid: d.info.lid, mtu: d.info.mtu,
		gid: d.info.gid, reads_in: d.info.reads_in, reads_out: d.info.reads_out}
	d.mu.Lock()
	d.serial++
	p.id = d.serial
	d.pairs[p.id] = p
	d.byNumber[uint32(made.qpn)] = p
	d.mu.Unlock()
	return p, nil
}

func (p *verbsPair) frame(op verbsOp) verbsFrame {
	v := verbsFrame{op: op, end: verbsEnd{qpn: uint32(p.end.qpn), psn: uint32(p.end.psn), lid: uint32(p.end.lid),
		mtu: uint32(p.end.mtu), readsIn: uint32(p.end.reads_in), readsOut: uint32(p.end.reads_out)}}
	for i := range v.end.gid {
		v.end.gid[i] = byte(p.end.gid[i])
	}
	return v
}

func (p *verbsPair) connect(e verbsEnd) error {
	theirs := C.db_end{qpn: C.uint32_t(e.qpn), psn: C.uint32_t(e.psn), lid: C.uint32_t(e.lid), mtu: C.uint32_t(e.mtu),
		reads_in: C.uint32_t(e.readsIn), reads_out: C.uint32_t(e.readsOut)}
	for i := range e.gid {
		theirs.gid[i] = C.uint8_t(e.gid[i])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return ErrClosed
	}
	if err := check(C.db_connect(p.qp, C.int(p.dev.port), C.int(p.dev.gid), &p.end, &theirs), "connect queue pair"); err != nil {
		return err
	}
	p.ready = true
	return nil
}

func (p *verbsPair) name() string { return "verbs" }

// moved notes that something is posted where nothing was, or completed. p.mu is held.
func (p *verbsPair) moved() { p.progress = time.Duration(p.conn.peer.node.turn.Load()) }

// idle tells whether nothing is under way. p.mu is held.
func (p *verbsPair) idle() bool { return len(p.sends)+len(p.posted)+p.binds == 0 }

// tick gives up a pair on which nothing completes any more: cards have been seen to fall silent
// instead of reporting a peer that is gone.
func (p *verbsPair) tick(now, limit time.Duration) {
	p.mu.Lock()
	silent := !p.gone && p.ready && !p.idle() && now-p.progress > limit
	p.mu.Unlock()
	if silent {
		p.fail(fmt.Sprintf("nothing completed for %v", limit), true)
	}
}

// completed is called by the loop for a signaled work request of this pair.
func (p *verbsPair) completed(now time.Duration, id, status uint32) {
	if status != 0 {
		p.mu.Lock()
		draining := p.draining
		p.mu.Unlock()
		if !draining {
			p.fail(statusText(status), true)
		}
		return
	}
	switch {
	case id&windowEvent != 0:
		p.bound(int(id &^ windowEvent))
	case id&sendEvent != 0:
		p.took(id &^ sendEvent)
	case id&eachEvent != 0:
		p.readLanded(int(id &^ eachEvent))
	default:
		p.readDone(now)
	}
}

// retire destroys the queue pair: from then on nothing writes into Dst. It returns what was under way.
func (p *verbsPair) retire() (left []*verbsChain, unsent [][]byte, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return nil, nil, false
	}
	for i := range p.sends {
		unsent = append(unsent, slices.Clone(p.buffer(p.sends[i].turn)[:p.sends[i].bytes]))
	}
	p.dev.outstanding.Add(-int64(len(p.sends)))
	p.sends = nil
	p.gone = true
	for _, w := range p.windows {
		C.db_window_free(w.mw)
	}
	C.db_pair_free(p.qp)
	p.scratch = nil
	p.dev.outstanding.Add(-int64(len(p.posted) + p.binds))
	for _, v := range p.posted {
		p.dev.parts.Add(int64(-v.parts))
	}
	left = append(p.posted, p.waiting...)
	p.posted, p.waiting = nil, nil
	p.dev.mu.Lock()
	delete(p.dev.pairs, p.id)
	delete(p.dev.byNumber, uint32(p.end.qpn))
	p.dev.mu.Unlock()
	return left, unsent, true
}

// fail gives up the queue pair: what was under way is read and sent again over the byte stream, and
// the connector offers a new pair after a while. Only the loop calls it.
func (p *verbsPair) fail(why string, tell bool) {
	c := p.conn
	p.drain()
	left, unsent, first := p.retire()
	if !first {
		return
	}
	c.clearDirect(p)
	c.peer.node.cfg.Logger.Warn("queue pair broken; reads go over tcp", "peer", c.peer.addr, "why", why)
	if tell {
		c.sendVerbs(verbsFrame{op: verbsBroken, why: why})
	}
	for _, msg := range unsent {
		c.resend(msg)
	}
	for _, v := range left {
		c.readStream(v.chain, nil, v.done, true)
	}
	c.offerAgain()
}

// close ends the pair with its peer.
func (p *verbsPair) close(err error) {
	left, _, _ := p.retire()
	for _, v := range left {
		p.conn.peer.finish(v.start, v.chain, err, v.done)
	}
}

// grant gives the peer the right to read a segment: a window bound to its queue pair, or the
// segment's own key where the device has no windows.
func (d *verbsDevice) grant(c *conn, s *segment, key uint64) error {
	p, ok := c.verbs()
	region := d.region(s.mem)
	if !ok || region == nil {
		return ErrNotSupported
	}
	p.mu.Lock()
	if p.gone {
		p.mu.Unlock()
		return ErrClosed
	}
	if d.info.windows == 0 {
		p.mu.Unlock()
		c.sendGrant(s, key, region.rkey, uint64(region.base))
		return nil
	}
	defer p.mu.Unlock()
	if p.windows[s.index] != nil {
		return fmt.Errorf("%w: segment %d asked twice", ErrProtocol, s.index)
	}
	w := &verbsWindow{key: key, seg: s}
	if err := check(C.db_window(d.handle, &w.mw), "allocate memory window"); err != nil {
		return err
	}
	var rkey C.uint32_t
	id := C.uint64_t(p.id)<<32 | C.uint64_t(windowEvent) | C.uint64_t(s.index)
	if err := check(C.db_bind(p.qp, w.mw, region.mr, C.uint64_t(region.base), C.uint64_t(region.size), id, &rkey), "bind memory window"); err != nil {
		C.db_window_free(w.mw)
		return err
	}
	w.rkey = uint32(rkey)
	p.windows[s.index] = w
	if p.idle() {
		p.moved()
	}
	p.binds++
	d.outstanding.Add(1)
	return nil
}

// bound answers the peer that asked for a segment, now that its window is bound.
func (p *verbsPair) bound(index int) {
	p.mu.Lock()
	w := p.windows[index]
	if p.gone || w == nil {
		p.mu.Unlock()
		return
	}
	p.moved()
	p.binds--
	p.dev.outstanding.Add(-1)
	p.mu.Unlock()
	p.conn.sendGrant(w.seg, w.key, w.rkey, uint64(uintptr(unsafe.Pointer(&w.seg.mem[0]))))
}

// granted takes a segment that the peer lets us read.
func (d *verbsDevice) granted(c *conn, g grantedBody) error {
	p, ok := c.verbs()
	if !ok {
		return nil // the pair broke meanwhile
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked[g.index] {
		return fmt.Errorf("%w: segment %d was not asked for", ErrProtocol, g.index)
	}
	for len(p.segs) <= g.index {
		p.segs = append(p.segs, grantedBody{})
	}
	p.segs[g.index] = g
	return nil
}
