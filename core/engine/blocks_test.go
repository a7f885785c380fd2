package engine

import "testing"

// TestFewRequestsTakeSmallBlocks shows that a partition's memory comes from blocks that fit its limit, and that a
// larger part has its own block.
func TestFewRequestsTakeSmallBlocks(t *testing.T) {
	for _, c := range []struct{ liveMax, block int }{{RequestsMaxDefault, blockRequests}, {1 << 30, blockRequests}, {1 << 14, 1 << 12}, {1, 64}} {
		b := newBlocks(c.liveMax)
		if piece := b.takeRequests(8); len(piece) != 8 || cap(piece) != 8 || len(b.rest) != c.block-8 {
			t.Errorf("at most %d requests: a piece of %d and %d left, want 8 of a block of %d", c.liveMax, len(piece), len(b.rest), c.block)
		}
		left := len(b.rest)
		if large := b.takeRequests(c.block); len(large) != c.block || len(b.rest) != left {
			t.Errorf("at most %d requests: a piece of %d leaves %d of the block, want %d", c.liveMax, len(large), len(b.rest), left)
		}
	}
}
