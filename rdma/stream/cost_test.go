package stream

import (
	"bytes"
	"testing"

	"downbeat.dev/internal/memcost"
)

// FuzzHandshakeCost shows that a stranger's first bytes take almost no memory.
func FuzzHandshakeCost(f *testing.F) {
	f.Add(newHello(NodeID{1}).appendHello(nil))
	f.Add(bytes.Repeat([]byte{0xff}, 4096))
	f.Fuzz(func(t *testing.T, in []byte) {
		memcost.Check(t, in, 64<<10, func() {
			_, _ = Welcome(&script{in: bytes.NewReader(in)}, NodeID{2}, "token", func() bool { return true })
			_, _ = Greet(&script{in: bytes.NewReader(in)}, NodeID{2}, nil, "token")
		})
	})
}
