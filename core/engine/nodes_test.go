package engine

import (
	"maps"
	"testing"
)

// TestBackendsAreNodes shows that each backend hears of all backends that have a data address, itself included, and
// of those that leave. The next backend does not get a number that was given up.
func TestBackendsAreNodes(t *testing.T) {
	s := newStage(t, Options{})
	join := func(name, addr string) *emulated {
		h := hello(name, 1, slope, "m")
		h.DataAddr = addr
		return s.mustBackend(h)
	}
	check := func(what string, b *emulated, want map[uint32]string) {
		t.Helper()
		if !maps.Equal(b.nodes, want) {
			t.Errorf("%s: %v, want %v", what, b.nodes, want)
		}
	}

	first := join("first", "addr-1")
	mute := join("mute", "")
	second := join("second", "addr-2")
	both := map[uint32]string{1: "addr-1", 2: "addr-2"}
	check("who came first", first, both)
	check("who offers no memory", mute, both)
	check("who came last", second, both)

	second.Close()
	third := join("third", "addr-3")
	check("who stays", first, map[uint32]string{1: "addr-1", 2: "", 3: "addr-3"})
	check("who comes later", third, map[uint32]string{1: "addr-1", 3: "addr-3"})
}
