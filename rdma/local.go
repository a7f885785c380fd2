package rdma

import (
	"fmt"
	"sync"

	"downbeat.dev/rdma/memory"
	"downbeat.dev/rdma/stream"
)

// localLink joins two nodes of one process. A read is a copy, checked like any other; a message is copied once and
// delivered on the sender's goroutine.
type localLink struct {
	self   *Peer      // this end
	remote *Peer      // the peer in the other node
	other  *localLink // the link of the other node

	mu      sync.Mutex // guards the fields below: messages towards remote
	queue   [][]byte
	spare   [][]byte
	bytes   int
	handing bool // a goroutine is delivering queued messages
	closed  error
	after   error // the remote is lost once that delivery ends
}

const (
	localSpare = 8       // message buffers kept
	localKept  = 1 << 20 // bytes of each of them
)

// joinNodes makes the two ends.
func joinNodes(from, to *Node, addr string) (*Peer, error) {
	a, b := newPeer(from, addr, to.id), newPeer(to, from.Addr(), from.id)
	here, there := &localLink{self: a, remote: b}, &localLink{self: b, remote: a}
	here.other, there.other = there, here
	a.link, b.link = here, there
	// Both nodes must have room, and neither may keep half a pair.
	if !to.admitPeer(b, false) {
		return nil, stream.ErrBusy
	}
	if !from.admitPeer(a, false) {
		there.cutLink(ErrClosed)
		return nil, fmt.Errorf("%w: %d peers, Config.PeersMax", ErrTooLarge, from.cfg.PeersMax)
	}
	return a, nil
}

func (l *localLink) name() string { return "local" }

// Reads end within the call, and nothing is queued by reference.
func (l *localLink) ping(done func(error)) { done(nil) }
func (l *localLink) giveUp()               {}
func (l *localLink) detach(*Buffer)        {}

// owed returns the bytes of messages not delivered yet.
func (l *localLink) owed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return 0
	}
	return l.bytes
}

func (l *localLink) postReads(r stream.Request) {
	began := l.self.node.now()
	pool := l.remote.node.pool
	var refusals memory.Refusals

	for i := range r.Reads {
		// The pin keeps the buffer from being freed under the copy.
		pin, ok := pool.Find(r.Reads[i].Src)
		if !ok {
			refusals.Add(i)
			continue
		}
		ok = pin.Copy(r.Reads[i].Dst, r.Reads[i].Src)
		pin.Release()
		if !ok {
			refusals.Add(i)
			continue
		}
		memory.Tell(r.Each, r.Reads, i)
	}

	l.self.finishChain(began, r.Reads, refusals.Err(), r.Done)
}

// sendMessage queues a copy and delivers the queue, unless a delivery is in progress, by this sender further up its
// stack or by another one. So calls of Receive never overlap or nest per peer.
func (l *localLink) sendMessage(parts [][]byte, size int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed != nil {
		return l.closed
	}

	if l.bytes+size > stream.QueueMax && l.bytes > 0 {
		return fmt.Errorf("%w: %d bytes wait for the peer, %d allowed", ErrNoMemory, l.bytes, stream.QueueMax)
	}

	// The sender may reuse the parts after the call, and Receive may come later, on another stack.
	var b []byte
	if k := len(l.spare); k > 0 {
		b, l.spare = l.spare[k-1], l.spare[:k-1]
	}
	for _, p := range parts {
		b = append(b, p...)
	}
	l.queue = append(l.queue, b)
	l.bytes += size

	// The goroutine that is delivering will deliver this message too: the order holds, and calls of Receive do not
	// overlap.
	if l.handing {
		return nil
	}
	l.handing = true

	for i := 0; i < len(l.queue) && l.closed == nil; i++ {
		b := l.queue[i]
		l.queue[i] = nil
		l.mu.Unlock()
		l.remote.receive(b)
		l.mu.Lock()
		l.bytes -= len(b)
		if len(l.spare) < localSpare && cap(b) <= localKept {
			l.spare = append(l.spare, b[:0])
		}
	}

	l.queue = l.queue[:0]
	l.handing = false

	// A link cut from within Receive is lost only now: nothing may follow Lost.
	if after := l.after; after != nil {
		l.mu.Unlock()
		l.remote.losePeer(after)
		l.mu.Lock()
	}
	return l.closed
}

func (l *localLink) cutLink(err error) {
	l.endLink(err)
	l.other.endLink(fmt.Errorf("%w: the other end: %w", ErrPeerLost, err))
}

func (l *localLink) endLink(err error) {
	l.mu.Lock()
	if l.closed == nil {
		l.closed = err
	}
	l.mu.Unlock()

	// Messages towards this end may be in delivery on another stack: that goroutine then reports the loss, last.
	towards := l.other
	towards.mu.Lock()
	handing := towards.handing
	if handing && towards.after == nil {
		towards.after = err
	}
	towards.mu.Unlock()
	if !handing {
		l.self.losePeer(err)
	}
}
