package rdma

import (
	"fmt"
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/stream"
)

const (
	echoEvery = 250 * time.Millisecond
	tickEvery = 50 * time.Millisecond
)

// keepalive asks a conn's peer for signs of life, and cuts one that gives none. It belongs to the loop, but for takeEchoed,
// which the reader calls.
type keepalive struct {
	conn   *conn
	echo   echo
	tailed time.Duration // when the bound of round trips was last taken
}

// tick is called by the loop every tickEvery: it echoes, and cuts a peer that makes no progress. Time before back,
// when the loop was away itself, is not held against the peer.
func (k *keepalive) tick(now, back time.Duration) {
	c := k.conn
	limit := c.peer.node.cfg.Stall
	heard := c.in.frames.Heard()

	// A peer owes an answer to an echo and to the oldest chain; it is silent if nothing came since either was asked.
	c.out.mu.Lock()
	waiting := k.echo.sentAt()
	if oldest := c.reads.chains.Oldest(); oldest != 0 && (waiting == 0 || oldest < waiting) {
		waiting = oldest
	}
	stuck := now-back > limit && c.out.frames.Stalled(now, limit)
	c.out.mu.Unlock()

	// Reads with a limit end before the peer is judged: to give them up may be all that is needed.
	c.reads.giveUpOverdue(now)
	(*c.direct.Load()).tick(now, limit/2)

	if stuck || waiting != 0 && now-max(waiting, heard, back) > limit {
		c.cutLink(fmt.Errorf("%w: no progress for %v", ErrPeerLost, limit))
		return
	}

	k.lookAtNetwork(now, waiting != 0)
	if k.echo.isDue(now) {
		c.out.sendFrame(stream.Frame{Kind: stream.KindEcho, ID: uint64(now)})
	}
}

// lookAtNetwork asks the kernel about the connection: at each tick while something is under way or was since the look before, else with
// the echoes.
func (k *keepalive) lookAtNetwork(now time.Duration, waiting bool) {
	p := k.conn.peer
	moved := p.sent.Load() + p.read.Load()
	if !k.conn.socket.overTCP || !waiting && moved == p.network.moved && now-p.network.asked < echoEvery {
		return
	}
	p.network.moved, p.network.asked = moved, now

	if info := k.conn.socket.askKernel(); info != nil {
		p.network.noteKernelInfo(now, info)
		if now-k.tailed >= echoEvery {
			k.tailed = now
			p.network.noteTail(p.echoes.readPercentiles(now).P999)
		}
	}
}

// takeEchoed takes the peer's answer to an echo.
func (k *keepalive) takeEchoed(f stream.Frame) error {
	if !k.echo.takeAnswer(f.ID) {
		return fmt.Errorf("%w: answer to no echo", ErrProtocol)
	}
	now := k.conn.peer.node.now()
	k.conn.peer.echoes.addDelay(now, now-time.Duration(f.ID))
	return nil
}

// echo is a question to which the peer's loop answers at once. One is under way at a time.
type echo struct {
	sent atomic.Int64  // node time of the one under way, 0 when none: set by the loop, cleared by the reader
	next time.Duration // owned by the loop
}

// isDue tells whether to ask at now, and notes that it is done.
func (e *echo) isDue(now time.Duration) bool {
	// One echo at a time: its id is when it was sent, so an answer needs no table.
	if now < e.next || !e.sent.CompareAndSwap(0, int64(now)) {
		return false
	}
	e.next = now + echoEvery
	return true
}

// sentAt is when the echo under way was sent, 0 when there is none.
func (e *echo) sentAt() time.Duration { return time.Duration(e.sent.Load()) }

// takeAnswer takes the answer to the echo of node time sent, and reports false if there was none.
func (e *echo) takeAnswer(sent uint64) bool {
	return sent != 0 && e.sent.CompareAndSwap(int64(sent), 0)
}
