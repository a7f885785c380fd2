//go:build rdma && linux && cgo

package rdma

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"downbeat.dev/internal/tlstest"
)

// TestVerbsBesideTLS: with TLS and verbs named together, messages arrive over the stream and over the queue pair, and
// chains end on either. Still no two calls of a node's owner run at once, and messages keep their order.
func TestVerbsBesideTLS(t *testing.T) {
	c := verbsConfig()
	c.TLS = tlstest.SelfSigned(t)
	c.TLS.InsecureSkipVerify = true // the certificate is for another address
	var busy [2]atomic.Bool         // during a call of the reader, of the owner
	in := func(i int) func() {
		if !busy[i].CompareAndSwap(false, true) {
			t.Error("two calls met")
		}
		return func() { busy[i].Store(false) }
	}
	const n = 600
	var got, back, ended atomic.Uint32
	oc := c
	oc.Receive = func(from *Peer, msg []byte) {
		defer in(1)()
		if i := binary.LittleEndian.Uint32(msg); i != got.Load() || len(msg) != messageSize(int(i)) {
			t.Errorf("message %d of %d bytes, want %d", i, len(msg), got.Load())
		}
		got.Add(1)
		from.Send(msg)
	}
	rc := c
	rc.Receive = func(_ *Peer, msg []byte) {
		defer in(0)()
		if i := binary.LittleEndian.Uint32(msg); i != back.Load() {
			t.Errorf("answer %d, want %d", i, back.Load())
		}
		back.Add(1)
	}
	owner, reader := open(t, oc), open(t, rc)
	p := connect(t, reader, owner.Addr())
	awaitProvider(t, p, "verbs")
	src, dst := alloc(t, owner, 50<<10), alloc(t, reader, 50<<10)
	defer src.Free()
	defer dst.Free()
	fill(src.Bytes(), 1)
	r := src.Offer()
	granted(t, p, r)
	plain := make([]byte, 50<<10) // not registered, so it is read over the stream
	for i := range n {
		msg := make([]byte, messageSize(i))
		binary.LittleEndian.PutUint32(msg, uint32(i))
		if err := p.Send(msg); err != nil {
			t.Fatal(err)
		}
		to := dst.Bytes()
		if i%2 == 0 {
			to = plain
		}
		p.ReadEach([]Read{readOf(to, r)}, func(int) { in(0)() }, func(err error) {
			defer in(0)()
			if err != nil {
				t.Error(err)
			}
			ended.Add(1)
		})
	}
	until(t, "every read ended", func() bool { return ended.Load() == n })
	until(t, "every answer came", func() bool { return back.Load() == n })
	if !bytes.Equal(plain, src.Bytes()) || !bytes.Equal(dst.Bytes(), src.Bytes()) {
		t.Error("bytes differ")
	}
}
