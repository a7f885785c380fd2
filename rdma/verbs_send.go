//go:build rdma && linux && cgo

package rdma

/*
#include "verbs.h"
*/
import "C"

import (
	"encoding/binary"
	"unsafe"
)

// Messages up to verbsMessageMax go as one SEND: their number in the peer's order, then the bytes. Longer ones are
// announced (outbox.go). Messages that find no free send buffer go over the byte stream with their number, and the
// receiver restores the order (inbox). Messages not taken when a pair fails are sent again over the byte stream; the
// receiver drops duplicates by number.
const verbsMessageMax = C.DB_RECV_BYTES - 8

var _ [0]struct{} = [verbsMessageMax - messageDirect]struct{}{}

// verbsSend is a message in progress.
type verbsSend struct {
	turn  int // value of sent at the time
	bytes int
}

// buffer is the i-th send buffer ever used; they are used in rotation.
func (p *verbsPair) buffer(i int) []byte {
	at := len(p.scratch) - C.DB_SEND_COUNT*C.DB_RECV_BYTES + i%C.DB_SEND_COUNT*C.DB_RECV_BYTES
	return p.scratch[at : at+C.DB_RECV_BYTES]
}

// sendDirect sends a message over the queue pair, or returns false if it must go another way. conn.out.mu is held, so
// that numbers and posts have one order.
func (p *verbsPair) sendDirect(number uint64, parts [][]byte, size int) bool {
	if size > verbsMessageMax {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || !p.ready || len(p.sends) == C.DB_SEND_COUNT {
		return false
	}

	// The parts are copied after their number into the next send buffer, from which the card reads.
	b := p.buffer(p.sent)
	binary.LittleEndian.PutUint64(b, number)
	n := 8
	for _, part := range parts {
		n += copy(b[n:], part)
	}

	wr := &p.one
	*wr = C.db_wr{op: C.DB_SEND, flags: C.DB_SIGNALED, bytes: C.uint32_t(n), lkey: C.uint32_t(p.lkey),
		local: C.uint64_t(uintptr(unsafe.Pointer(&b[0]))), id: C.uint64_t(p.id)<<32 | C.uint64_t(sendEvent) | C.uint64_t(p.sent%turns)}
	if C.db_post(C.uintptr_t(uintptr(p.qp)), wr, 1) != 0 {
		// The card may have it all the same, so its buffer is not reused. If it arrives twice, the second is dropped
		// by its number.
		p.sent++
		p.doom("message not posted")
		return false
	}

	if p.idle() {
		p.noteProgress()
	}
	p.sends = append(p.sends, verbsSend{p.sent, n})
	p.sent++
	p.dev.outstanding.Add(1)
	return true
}

const turns = 1 << 29 // a message's turn in its completion's id

// endOldestMessage ends the oldest message, if it is the completed one.
func (p *verbsPair) endOldestMessage(turn uint32) {
	p.mu.Lock()
	p.noteProgress()
	if !p.gone && len(p.sends) > 0 && uint32(p.sends[0].turn%turns) == turn {
		p.sends = p.sends[:copy(p.sends, p.sends[1:])]
		p.dev.outstanding.Add(-1)
	}
	p.mu.Unlock()
}

// received delivers a SEND's message, and returns its buffer.
func (d *verbsDevice) received(wc *C.db_wc) {
	number := C.uint32_t(wc.id &^ C.DB_RECV)
	d.mu.Lock()
	p := d.byNumber[uint32(wc.qpn)]
	d.mu.Unlock()
	if p != nil && wc.status == 0 && wc.bytes >= 8 {
		b := unsafe.Slice((*byte)(unsafe.Pointer(C.db_received(C.uintptr_t(uintptr(d.handle)), number))), int(wc.bytes))
		if err := p.conn.inbox.deliverMessage(binary.LittleEndian.Uint64(b), b[8:]); err != nil {
			p.conn.cutLink(err)
		}
	}
	C.db_receive(C.uintptr_t(uintptr(d.handle)), number)
}

// drain stops the pair and takes what has arrived on it. Only the loop calls it.
func (p *verbsPair) drain() {
	p.mu.Lock()
	if p.gone || p.draining {
		p.mu.Unlock()
		return
	}
	p.draining = true
	C.db_break(p.qp)
	p.mu.Unlock()
	// Completions of other pairs come in between and are handled as well: all share one queue.
	for p.dev.poll() > 0 {
	}
}

// doom makes the loop give up the pair.
func (p *verbsPair) doom(why string) {
	p.dev.mu.Lock()
	p.dev.doomed = append(p.dev.doomed, doomedPair{p, why})
	p.dev.mu.Unlock()
	p.conn.socket.loop.signalWake()
}

type doomedPair struct {
	pair *verbsPair
	why  string
}
