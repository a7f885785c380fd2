package rdma

import (
	"fmt"
	"sync"
)

// localLink joins two nodes of one process: a read is a copy, checked like any other; a message is
// copied once and handed over on the sender's goroutine.
type localLink struct {
	self *Peer // this end
	twin *Peer // how the other node knows us

	mu      sync.Mutex // protects what follows: messages towards twin
	queue   [][]byte
	spare   [][]byte
	bytes   int
	handing bool // somebody is handing queued messages over
	closed  error
	after   error // the twin is lost once the handing over ends
}

const localSpare = 8 // message buffers kept, up to messageKept bytes each

// join makes the two ends.
func join(from, to *Node, addr string) (*Peer, error) {
	a, b := newPeer(from, addr, to.id), newPeer(to, from.Addr(), from.id)
	a.twin, b.twin = &localLink{self: a, twin: b}, &localLink{self: b, twin: a}
	if !to.admit(b, false) {
		return nil, statusError(greetBusy)
	}
	if !from.admit(a, false) {
		b.twin.cut(ErrClosed)
		return nil, fmt.Errorf("%w: %d peers, Config.PeersMax", ErrTooLarge, from.cfg.PeersMax)
	}
	return a, nil
}

func (l *localLink) read(chain []Read, each func(int), done func(error)) {
	start := l.self.node.now()
	var failed *ChainError
	pool := l.twin.node.pool
	for i := range chain {
		b := pool.find(chain[i].Src)
		if b == nil {
			if failed == nil {
				failed = &ChainError{Err: ErrNotOffered}
			}
			failed.Failed = append(failed.Failed, i)
			continue
		}
		copy(chain[i].Dst, b.mem[chain[i].Src.Offset:])
		b.unpin()
		tell(each, chain, i)
	}
	if failed != nil {
		l.self.finish(start, chain, failed, done)
		return
	}
	l.self.finish(start, chain, nil, done)
}

// send queues a copy and hands over what is queued, unless somebody is at it: this sender
// further up its own stack, or another one. So calls of Receive never overlap nor nest per peer.
func (l *localLink) send(parts [][]byte, size int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return l.closed
	}
	if l.bytes+size > queueMax && l.bytes > 0 {
		return fmt.Errorf("%w: %d bytes wait for the peer, %d allowed", ErrNoMemory, l.bytes, queueMax)
	}
	var b []byte
	if k := len(l.spare); k > 0 {
		b, l.spare = l.spare[k-1], l.spare[:k-1]
	}
	for _, p := range parts {
		b = append(b, p...)
	}
	l.queue = append(l.queue, b)
	l.bytes += size
	if l.handing {
		return nil
	}
	l.handing = true
	for i := 0; i < len(l.queue) && l.closed == nil; i++ {
		b := l.queue[i]
		l.queue[i] = nil
		l.mu.Unlock()
		l.twin.receive(b)
		l.mu.Lock()
		l.bytes -= len(b)
		if len(l.spare) < localSpare && cap(b) <= messageKept {
			l.spare = append(l.spare, b[:0])
		}
	}
	l.queue = l.queue[:0]
	l.handing = false
	if after := l.after; after != nil {
		l.mu.Unlock()
		l.twin.lose(after)
		l.mu.Lock()
	}
	return l.closed
}

func (l *localLink) cut(err error) {
	l.end(err)
	l.twin.twin.end(fmt.Errorf("%w: the other end: %w", ErrPeerLost, err))
}

func (l *localLink) end(err error) {
	l.mu.Lock()
	if l.closed == nil {
		l.closed = err
	}
	l.mu.Unlock()
	towards := l.twin.twin
	towards.mu.Lock()
	handing := towards.handing
	if handing && towards.after == nil {
		towards.after = err
	}
	towards.mu.Unlock()
	if !handing {
		l.self.lose(err)
	}
}
