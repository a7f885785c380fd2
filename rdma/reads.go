package rdma

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// reads are the reads of the peer's memory over the byte stream that have not ended.
type reads struct {
	conn     *conn
	chains   *stream.Chains // conn.out.mu protects it
	givingUp atomic.Bool    // Peer.GiveUp was called
}

// requestChain requests the chain's bytes from the peer's loop.
func (r *reads) requestChain(chain stream.Request) {
	c := r.conn
	now := c.peer.node.now()
	c.out.mu.Lock()

	err := c.out.frames.Err()
	if err == nil {
		err = r.chains.Ask(c.out.frames, now, chain)
	}
	c.out.mu.Unlock()

	if err != nil {
		c.peer.finishChain(now, chain.Reads, err, chain.Done)
	}
}

// ping reads with a key that no node offers: the refusal is the answer.
func (r *reads) ping(done func(error)) {
	r.requestChain(stream.Request{Reads: []Read{{Src: Remote{Key: memory.NoKey}}}, Done: func(err error) {
		if errors.Is(err, ErrNotOffered) {
			err = nil
		}
		done(err)
	}})
}

// giveUp makes the loop give up the chains with a limit.
func (r *reads) giveUp() {
	l := r.conn.socket.loop
	r.givingUp.Store(true)
	l.givingUp.Store(true)
	l.wakeUp()
}

// giveUpOverdue gives up the chains whose limit is before now. Only the loop calls it.
func (r *reads) giveUpOverdue(now time.Duration) {
	c := r.conn
	// Reads of a queue pair write into Dst until the pair is gone; its chains then continue over the byte stream.
	(*c.direct.Load()).giveUp(now)

	c.out.mu.Lock()
	overdue := r.chains.Overdue(now)
	if len(overdue) > 0 && c.socket.tls != nil { // its own goroutine may be reading into Dst
		c.out.frames.Fail(fmt.Errorf("%w: a read is overdue", ErrPeerLost))
		overdue = nil
	}
	c.out.mu.Unlock()

	for _, chain := range overdue {
		c.in.frames.GiveUp(chain)
	}
}
