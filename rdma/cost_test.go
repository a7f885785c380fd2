package rdma

import (
	"bytes"
	"testing"

	"downbeat.dev/internal/memcost"
	"downbeat.dev/rdma/stream"
)

// FuzzFramesCost shows that no bytes of a peer take more memory than their length allows, whatever their headers
// promise.
func FuzzFramesCost(f *testing.F) {
	f.Add(stream.Frame{Kind: stream.KindEcho, ID: 5}.Append(nil))
	f.Add(append(stream.Frame{Body: 3, Kind: stream.KindMessage}.Append(nil), "abc"...))
	for kind := range stream.Kind(16) {
		for _, body := range []uint32{0, 1, 1 << 10, 1 << 20, 1 << 28, 1<<32 - 1} {
			f.Add(stream.Frame{Body: body, Kind: kind, Count: 1, ID: 1}.Append(nil))
			f.Add(bytes.Repeat(stream.Frame{Body: body, Kind: kind, ID: announced}.Append(nil), 100))
		}
	}
	n, err := Open(Config{PoolBytes: 8 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { n.Close() })
	n.announce.Store(true)
	dst := make([]byte, 100)

	f.Fuzz(func(t *testing.T, in []byte) {
		memcost.Check(t, in, 256<<10, func() {
			c := fuzzConn(n, dst)
			_ = c.in.frames.Feed(in)
			c.out.mu.Lock()
			c.out.frames.End(ErrClosed)
			c.out.mu.Unlock()
			for _, f := range c.inbox.fetches {
				if f.buffer != nil {
					f.buffer.Free()
				}
			}
			c.inbox.releaseHeld()
		})
	})
}
