package stream

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/internal/tlstest"
	"downbeat.dev/rdma/memory"
)

// TestQueueThatIsNeverEmptyKeepsNoMemory shows that a queue's memory follows its length, even if it is never empty.
func TestQueueThatIsNeverEmptyKeepsNoMemory(t *testing.T) {
	q := queue{copied: new(atomic.Int64)}
	q.copyIn(make([]byte, 100))
	for range 1000 {
		q.copyIn(make([]byte, chunkBytes))
		q.consume(chunkBytes)
		if q.bytes != 100 || q.owned != 100 {
			t.Fatalf("%d bytes are queued, %d owned, want 100", q.bytes, q.owned)
		}
	}
	if len(q.chunks) > chunksKept {
		t.Errorf("%d chunks are kept for 100 bytes", len(q.chunks))
	}
}

// TestCutOfATLSPeerWritesNothing shows that disconnecting a TLS peer that reads nothing does not wait for it: the
// loop does this under the connection's lock.
func TestCutOfATLSPeerWritesNothing(t *testing.T) {
	here, there := net.Pipe() // a pipe, whose writes wait for a reader
	defer there.Close()
	cfg := tlstest.SelfSigned(t)
	server := tls.Server(there, cfg)
	go server.Handshake()
	client := cfg.Clone()
	client.ServerName = "127.0.0.1"
	s := tls.Client(here, client)
	if err := s.Handshake(); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	w := NewWriter(Options{Mu: &mu, TLS: s, Now: new(atomic.Int64), Copied: new(atomic.Int64)})
	mu.Lock()
	w.Fail(memory.ErrClosed)
	mu.Unlock()
	there.SetReadDeadline(time.Now().Add(patient))
	if _, err := there.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the peer reads %v, want nothing but the end", err)
	}
}
