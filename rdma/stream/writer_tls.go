package stream

import "fmt"

// tlsWrite is the number of bytes of one TLS write.
const tlsWrite = 64 << 10

// wakeTLS makes RunTLS write the queue.
func (w *Writer) wakeTLS() {
	if w.closed {
		return
	}

	// An idle writer made no progress because there was nothing to do.
	if !w.writing {
		w.wrote = w.turnTime()
	}

	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// RunTLS writes to a TLS connection until End, in a separate goroutine, because such a write may wait. It writes from
// its own memory, so that no wait keeps an offered buffer from its owner. It is called without the lock.
func (w *Writer) RunTLS() {
	own := make([]byte, tlsWrite)
	for range w.kick {
		w.o.Mu.Lock()
		for w.queue.waiting() > 0 && w.err == nil {
			w.writeTLS(own)
		}
		w.closeIfEnded()
		w.o.Mu.Unlock()
	}
}

// writeTLS writes one piece of the queue.
func (w *Writer) writeTLS(own []byte) {
	part := own[:copy(own, w.queue.runs[w.queue.head].b)]

	w.writing = true
	w.o.Mu.Unlock()
	n, err := w.o.TLS.Write(part)
	w.o.Mu.Lock()
	w.writing = false

	w.queue.consume(n)
	w.wrote = w.turnTime()
	if err != nil {
		w.Fail(fmt.Errorf("%w: write: %w", ErrPeerLost, err))
	}
}
