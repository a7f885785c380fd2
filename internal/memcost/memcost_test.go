package memcost

import "testing"

var sink []byte

// refusing notes whether a check failed.
type refusing struct {
	testing.TB
	failed bool
}

func (r *refusing) Helper()               {}
func (r *refusing) Errorf(string, ...any) { r.failed = true }

// TestCheckTellsGreedFromThrift: what takes too much is found, what takes as much as allowed is not.
func TestCheckTellsGreedFromThrift(t *testing.T) {
	input := make([]byte, 1<<14)
	for _, c := range []struct {
		bytes  int
		failed bool
	}{{PerByte * len(input) / 2, false}, {PerByte*len(input) + 4<<20, true}} {
		r := &refusing{TB: t}
		Check(r, input, 1<<20, func() { sink = make([]byte, c.bytes) })
		if r.failed != c.failed {
			t.Errorf("%d bytes for %d of input: failed is %v, want %v", c.bytes, len(input), r.failed, c.failed)
		}
	}
}
