package limits

import "testing"

// TestNoSessionKeepsOthersOut: sessions that begin as many commands as they can, one after the other, leave room to the next
// one, and an ended command makes room again.
func TestNoSessionKeepsOthersOut(t *testing.T) {
	c := Commands{Most: 64}
	fill := func(session uint32) (n int) {
		for c.Begin(session) {
			n++
		}
		return n
	}
	var got []int
	for session := range uint32(7) {
		got = append(got, fill(session))
	}
	want := []int{32, 16, 8, 4, 2, 1, 1}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("sessions begin %v commands, want %v", got, want)
		}
	}
	if c.Begin(9) {
		t.Error("more commands than there is room for")
	}

	for range 32 {
		c.End(0)
	}
	if n := fill(8); n != 16 || c.Of(0) != 0 || len(c.of) != 7 {
		t.Errorf("%d commands begin where 32 have ended; session 0 has %d", n, c.Of(0))
	}
}
