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

// keepalive probes a conn's peer for signs of life, and cuts off a silent one. It belongs to the loop, except
// takeEchoed, which the reader calls.
type keepalive struct {
	conn   *conn
	echo   echo
	tailed time.Duration // when the bound of round trips was last read
}

// tick is called by the loop every tickEvery: it sends echoes, and cuts off a peer that makes no progress. Time
// before back, when the loop itself was stopped, does not count against the peer.
func (k *keepalive) tick(now, back time.Duration) {
	c := k.conn
	limit := c.peer.node.cfg.Stall
	heard := c.in.frames.Heard()

	// A peer owes answers to an echo and to the oldest chain. It is silent if nothing came since either was sent.
	c.out.mu.Lock()
	waiting := k.echo.sentAt()
	if oldest := c.reads.chains.Oldest(); oldest != 0 && (waiting == 0 || oldest < waiting) {
		waiting = oldest
	}
	stuck := now-back > limit && c.out.frames.Stalled(now, limit)
	c.out.mu.Unlock()

	// Reads with a limit end before the peer is judged: giving them up may be enough.
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

// lookAtNetwork reads the kernel's state of the connection: at each tick with reads or messages since the last look,
// otherwise with the echoes.
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

// takeEchoed handles the peer's answer to an echo.
func (k *keepalive) takeEchoed(f stream.Frame) error {
	if !k.echo.takeAnswer(f.ID) {
		return fmt.Errorf("%w: answer to no echo", ErrProtocol)
	}
	now := k.conn.peer.node.now()
	k.conn.peer.echoes.addDelay(now, now-time.Duration(f.ID))
	return nil
}

// echo is a request that the peer's loop answers at once. One is in progress at a time.
type echo struct {
	sent atomic.Int64  // node time of the one in progress; 0: none. Set by the loop, cleared by the reader
	next time.Duration // owned by the loop
}

// isDue reports whether to send an echo at now, and records that it is sent.
func (e *echo) isDue(now time.Duration) bool {
	// One echo at a time: its id is its send time, so an answer needs no table.
	if now < e.next || !e.sent.CompareAndSwap(0, int64(now)) {
		return false
	}
	e.next = now + echoEvery
	return true
}

// sentAt returns when the echo in progress was sent; 0 if there is none.
func (e *echo) sentAt() time.Duration { return time.Duration(e.sent.Load()) }

// takeAnswer handles the answer to the echo sent at node time sent, and returns false if there was none.
func (e *echo) takeAnswer(sent uint64) bool {
	return sent != 0 && e.sent.CompareAndSwap(int64(sent), 0)
}
