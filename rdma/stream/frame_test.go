package stream

import (
	"encoding/binary"
	"math"
	"testing"

	"downbeat.dev/rdma/memory"
)

// TestOffsetsBeyond32BitsAreNotNarrowed shows that a request with such an offset reads nothing, instead of the bytes
// at its low bits.
func TestOffsetsBeyond32BitsAreNotNarrowed(t *testing.T) {
	for _, offset := range []uint64{1 << 32, 1<<32 + 16, math.MaxUint64} {
		b := AppendRemote(nil, memory.Remote{Key: 1, Length: 10})
		binary.LittleEndian.PutUint64(b[8:], offset)

		if r := ParseRemote(b); r.Offset != math.MaxUint32 {
			t.Errorf("offset %d became %d, want %d, beyond every buffer", offset, r.Offset, uint32(math.MaxUint32))
		}
	}
}
