package model

import (
	"math"
	"testing"
)

// TestPartSaysWhereATensorOfAnInputLies includes offsets that a hostile frontend invents. None may wrap around and
// name bytes before the input.
func TestPartSaysWhereATensorOfAnInputLies(t *testing.T) {
	for name, c := range map[string]struct {
		offset       uint32
		from, length int
		want         Descriptor
	}{
		"the whole":       {100, 0, 50, Descriptor{7, 100, 50}},
		"a later tensor":  {100, 30, 20, Descriptor{7, 130, 20}},
		"at the limit":    {math.MaxUint32 - 8, 8, 4, Descriptor{7, math.MaxUint32, 4}},
		"beyond 32 bits":  {math.MaxUint32 - 8, 9, 4, Descriptor{7, math.MaxUint32, 4}},
		"far beyond them": {math.MaxUint32, 1 << 30, 4, Descriptor{7, math.MaxUint32, 4}},
	} {
		if got := (Descriptor{7, c.offset, 4096}).Part(c.from, c.length); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestADescriptorNamesItsNode shows that the node fits beside any place in the largest buffer without changing it.
func TestADescriptorNamesItsNode(t *testing.T) {
	for _, d := range []Descriptor{{}, {1, 0, 1}, {7, 0, BufferMax}, {math.MaxUint64, BufferMax - 1, 1}, {1, BufferMax / 2, BufferMax / 2}} {
		for _, node := range []uint32{0, 1, 31, 32, 33, NodesMax, Composed} {
			in := d.In(node)
			if in.Node() != node || in.InNode() != d || node == 0 && in != d {
				t.Errorf("%+v in node %d is %+v: node %d, %+v", d, node, in, in.Node(), in.InNode())
			}
			// An older peer must find that no buffer is that large.
			if node != 0 && d.Length > 0 && uint64(in.Offset)+uint64(in.Length) <= BufferMax {
				t.Errorf("%+v in node %d is %+v, which lies in a buffer", d, node, in)
			}
		}
	}
}

func TestReasonsHaveNames(t *testing.T) {
	seen := map[string]bool{"": true}
	for r := ReasonNone; r < ReasonCount; r++ {
		if seen[r.String()] {
			t.Errorf("reason %d: the name %q is empty or another's", r, r)
		}
		seen[r.String()] = true
	}

	if ReasonCount.String() != "invalid" {
		t.Errorf("a reason that is not one is called %q, want invalid", ReasonCount)
	}
}
