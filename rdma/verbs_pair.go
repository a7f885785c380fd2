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

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// verbsPair is the queue pair to one peer. It reads the peer's segments one-sided, see verbs_read.go.
//
// A peer can read whole segments in which it has named a live key, until it goes. If the device has type 2 memory
// windows, each peer gets a window per segment, bound to its queue pair: the window's rkey is useless to others.
// Otherwise the peer gets the segment's own rkey.
type verbsPair struct {
	conn   *conn
	direct direct // the pair itself, as the conn holds it
	dev    *verbsDevice
	id     uint32
	end    C.db_end

	mu       sync.Mutex // guards the fields below
	qp       unsafe.Pointer
	ready    bool // connected
	gone     bool
	segs     []stream.Granted // the peer's, by index; those with slots are known
	asked    map[int]bool
	posted   []*verbsChain // in the order of posting
	waiting  []*verbsChain // waiting for room in the send queue
	spare    []*verbsChain
	free     int // work requests that the send queue takes
	wrs      []C.db_wr
	one      C.db_wr       // of send
	draining bool          // failPair has begun
	progress time.Duration // node time of the last completion, or of a post after none was due
	scratch  []byte        // entries land here; a ring, registered with its own key
	lkey     uint32
	next     int           // index of the next entry of scratch
	turn     time.Duration // node time for which poll is ending completions, after which it pumps the pair; 0: it is not
	ended    *verbsChain   // kept at the next completion; owned by the loop
	rechecks uint64        // chains whose entries were read a second time
	sends    []verbsSend   // in progress, oldest first; one per send buffer
	sent     int           // buffers used so far: the next is sent % DB_SEND_COUNT
	windows  map[int]*verbsWindow
	binds    int // of windows, in progress
}

const (
	sendDepth   = 512
	partsMax    = 1 << 12         // limit of a device's reads in progress that are reported individually: a quarter of its completion queue
	windowEvent = uint32(1) << 31 // in a completion's id: a window of that segment was bound
	sendEvent   = uint32(1) << 30 // the oldest message was taken
	eachEvent   = uint32(1) << 29 // that read of the oldest chain has landed
)

// newPair makes a queue pair in state INIT.
func (d *verbsDevice) newPair(c *conn) (*verbsPair, error) {
	p := &verbsPair{conn: c, dev: d, asked: map[int]bool{}, windows: map[int]*verbsWindow{}}
	p.direct = p

	// Send buffers have their own work requests, so that messages never wait for reads.
	depth := min(sendDepth, int(d.info.wr_max)-C.DB_SEND_COUNT)
	p.free, p.wrs = depth, make([]C.db_wr, 0, depth)

	var made C.db_pair_info

	bytes := depth * memory.EntryBytes
	rc := C.db_pair(d.handle, C.int(d.port), C.uint32_t(depth), C.uint32_t(bytes), &made)
	if err := checkMemory(rc, "create queue pair", bytes+C.DB_SEND_COUNT*C.DB_RECV_BYTES); err != nil {
		return nil, err
	}

	// The scratch area holds the entries that READs bring, then the send buffers; both belong to this pair alone.
	p.qp, p.lkey = made.qp, uint32(made.scratch_lkey)
	p.scratch = unsafe.Slice((*byte)(made.scratch), bytes+C.DB_SEND_COUNT*C.DB_RECV_BYTES)
	p.end = C.db_end{qpn: made.qpn, psn: C.uint32_t(rand.Uint32() & 0xffffff), lid: d.info.lid, mtu: d.info.mtu,
		gid: d.info.gid, reads_in: d.info.reads_in, reads_out: d.info.reads_out}

	d.mu.Lock()

	// Completions name their pair by this number, which is never reused: those of a pair that has gone are dropped.
	d.serial++
	p.id = d.serial
	d.pairs[p.id] = p
	d.byNumber[uint32(made.qpn)] = p
	d.mu.Unlock()
	return p, nil
}

// frame returns the set-up frame that describes this end.
func (p *verbsPair) frame(op stream.SetupOp) stream.Setup {
	s := stream.Setup{Op: op, End: stream.PairEnd{QPN: uint32(p.end.qpn), PSN: uint32(p.end.psn), LID: uint32(p.end.lid),
		MTU: uint32(p.end.mtu), ReadsIn: uint32(p.end.reads_in), ReadsOut: uint32(p.end.reads_out)}}
	for i := range s.End.GID {
		s.End.GID[i] = byte(p.end.gid[i])
	}
	return s
}

// connect connects the queue pair with the peer's end, after which it may be used.
func (p *verbsPair) connect(e stream.PairEnd) error {
	theirs := C.db_end{qpn: C.uint32_t(e.QPN), psn: C.uint32_t(e.PSN), lid: C.uint32_t(e.LID), mtu: C.uint32_t(e.MTU),
		reads_in: C.uint32_t(e.ReadsIn), reads_out: C.uint32_t(e.ReadsOut)}
	for i := range e.GID {
		theirs.gid[i] = C.uint8_t(e.GID[i])
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return ErrClosed
	}
	if err := checkVerbs(C.db_connect(p.qp, C.int(p.dev.port), C.int(p.dev.gid), &p.end, &theirs), "connect queue pair"); err != nil {
		return err
	}
	p.ready = true
	return nil
}

func (p *verbsPair) name() string { return "verbs" }

// noteProgress records a post when nothing was posted, or a completion. p.mu is held.
func (p *verbsPair) noteProgress() { p.progress = time.Duration(p.conn.peer.node.turn.Load()) }

// idle reports whether nothing is in progress. p.mu is held.
func (p *verbsPair) idle() bool { return len(p.sends)+len(p.posted)+p.binds == 0 }

// tick gives up a pair on which nothing completes any more: some cards fall silent instead of reporting a lost peer.
func (p *verbsPair) tick(now, limit time.Duration) {
	p.mu.Lock()
	silent := !p.gone && p.ready && !p.idle() && now-p.progress > limit
	p.mu.Unlock()
	if silent {
		p.failPair(fmt.Sprintf("nothing completed for %v", limit), true)
	}
}

// giveUp gives up the pair if a chain should have ended before now, because it may still write into the chain's Dst.
func (p *verbsPair) giveUp(now time.Duration) {
	overdue := func(v *verbsChain) bool { return v.by != 0 && v.by < now }
	p.mu.Lock()
	late := !p.gone && (slices.ContainsFunc(p.posted, overdue) || slices.ContainsFunc(p.waiting, overdue))
	p.mu.Unlock()
	if late {
		p.failPair("a read is overdue", true)
	}
}

// handleCompletion handles a signaled work request of this pair; the loop calls it.
func (p *verbsPair) handleCompletion(now time.Duration, id, status uint32) {
	if status != 0 {
		p.mu.Lock()
		draining := p.draining
		p.mu.Unlock()
		if !draining {
			p.failPair(statusText(status), true)
		}
		return
	}

	// A bit of the id says what was requested.
	switch {
	case id&windowEvent != 0:
		p.answerBound(int(id &^ windowEvent))
	case id&sendEvent != 0:
		p.endOldestMessage(id &^ sendEvent)
	case id&eachEvent != 0:
		p.readLanded(int(id &^ eachEvent))
	default:
		p.readDone(now)
	}
}

// retire destroys the queue pair: from then on nothing writes into Dst. It returns the work in progress.
func (p *verbsPair) retire() (left []*verbsChain, unsent [][]byte, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return nil, nil, false
	}

	// Messages that may not have arrived are kept: the byte stream sends them again.
	for i := range p.sends {
		unsent = append(unsent, slices.Clone(p.buffer(p.sends[i].turn)[:p.sends[i].bytes]))
	}
	p.dev.outstanding.Add(-int64(len(p.sends)))
	p.sends = nil
	p.gone = true

	// Only after the pair is destroyed does nothing write into Dst any more, so chains must not end before.
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

// failPair gives up the queue pair: its work in progress is read and sent again over the byte stream, and the
// connector offers a new pair after a while. Only the loop calls it.
func (p *verbsPair) failPair(why string, tell bool) {
	c := p.conn
	p.drain()
	left, unsent, first := p.retire()
	if !first {
		return
	}

	p.leaveUse()
	c.peer.node.cfg.Logger.Warn("queue pair broken; reads go over tcp", "peer", c.peer.addr, "why", why)

	// Tell the other end, as its own card may see nothing wrong.
	if tell {
		c.out.sendSetup(stream.Setup{Op: stream.SetupBroken, Why: why})
	}

	// Messages keep their numbers: the receiver drops one that had arrived after all.
	for _, msg := range unsent {
		c.outbox.resend(msg)
	}
	for _, v := range left {
		c.reads.requestChain(stream.Request{Reads: v.chain, Done: v.done, By: v.by, Again: true})
	}

	c.upgrade.offerAgain()
}

// closeDirect ends the pair with its peer.
func (p *verbsPair) closeDirect(err error) {
	left, _, _ := p.retire()
	for _, v := range left {
		p.conn.peer.finishChain(v.start, v.chain, err, v.done)
	}
}
