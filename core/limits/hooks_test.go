package limits

import (
	"testing"
	"time"
)

func TestHooks(t *testing.T) {
	var h Hooks
	if h.Expected() != 0 {
		t.Errorf("without a hook: %v", h.Expected())
	}
	h.Add(3)
	h.Add(5)
	h.Add(4)
	if h.Expected() != 5 {
		t.Errorf("of three: %v, want the longest", h.Expected())
	}
	for i := range hooksLatest - 3 {
		h.Add(time.Duration(i % 3))
	}
	h.Add(time.Second) // a stall
	if h.Expected() != 5 {
		t.Errorf("with a stall: %v, want the second longest", h.Expected())
	}
	for range hooksLatest {
		h.Add(1)
	}
	if h.Expected() != 1 {
		t.Errorf("after a change: %v", h.Expected())
	}
}
