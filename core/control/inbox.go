package control

import "sync"

const inboxMax = 1 << 20 // messages waiting for an in-process peer before it is cut off

// inbox passes batches of messages from any goroutine to one. Both sides' memory is reused.
type inbox[T any] struct {
	mu     sync.Mutex
	more   *sync.Cond
	in     T // under mu
	out    T // owned by the goroutine
	n      int
	closed bool
	err    error
	ended  chan struct{}
}

func newInbox[T any]() *inbox[T] {
	b := &inbox[T]{ended: make(chan struct{})}
	b.more = sync.NewCond(&b.mu)
	return b
}

// putMessages calls add to append n messages. It returns false if too many wait for the peer.
func (b *inbox[T]) putMessages(n int, add func(*T)) {
	b.mu.Lock()
	if !b.closed {
		// A peer that is too slow is cut off, as on TCP; the engine never waits for it.
		if b.n += n; b.n > inboxMax {
			b.closed, b.err = true, ErrSlowPeer
		} else {
			add(&b.in)
		}
		b.more.Signal()
	}
	b.mu.Unlock()
}

func (b *inbox[T]) closeInbox(err error) {
	b.mu.Lock()
	if !b.closed {
		b.closed, b.err = true, err
	}
	b.more.Signal()
	b.mu.Unlock()
}

// deliverAll calls deliver with the messages until close, then last with the reason.
func (b *inbox[T]) deliverAll(deliver func(*T), last func(error)) {
	defer close(b.ended)
	for {
		b.mu.Lock()
		for b.n == 0 && !b.closed {
			b.more.Wait()
		}
		if b.closed {
			err := b.err
			b.mu.Unlock()
			last(err)
			return
		}

		// The buffers are swapped under the lock and events run outside it, so senders never wait for an event.
		b.in, b.out = b.out, b.in
		b.n = 0
		b.mu.Unlock()
		deliver(&b.out)
	}
}
