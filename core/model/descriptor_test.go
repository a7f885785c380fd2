package model

import (
	"math"
	"testing"
)

// TestPartSaysWhereATensorOfAnInputLies: also for offsets that a hostile frontend makes up. None may wrap around and
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
