package limits

import (
	"testing"
	"time"
)

// TestBoundsFollowTheSlowestPeerAndTheTightestService shows that each service keeps its share, whatever a peer
// measures.
func TestBoundsFollowTheSlowestPeerAndTheTightestService(t *testing.T) {
	const ms = time.Millisecond
	b := Bound[time.Duration]{}.Slowest(2*ms, ms/10).Slowest(ms, ms/2)
	if b.Ctrl != 2*ms || b.Data != ms/2 {
		t.Errorf("of two peers %+v, want the slower one in each", b)
	}
	if b = b.Within(100*ms, 8); b.Ctrl != 2*ms || b.Data != ms/2 {
		t.Errorf("a service with time takes %+v", b)
	}
	if b = b.Within(4*ms, 10); b.Ctrl != ms || b.Data != ms/10 {
		t.Errorf("a quarter of 4 ms, and of that a tenth: %+v", b)
	}
}

func TestOneWay(t *testing.T) {
	if d := OneWay(time.Duration(200), 1000); d != 900 {
		t.Errorf("a round trip of 200 at the median and 1000 at the tail: one way %d, want 900", d)
	}
}

// TestNearDelaysStay shows which delays count as near: within a tenth or 10 µs, whichever is larger, in either
// direction.
func TestNearDelaysStay(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		a, b time.Duration
		near bool
	}{
		{0, 10 * us, true}, {0, 11 * us, false}, {900 * us, 1000 * us, true}, {899 * us, 1000 * us, false},
	} {
		if Near(c.a, c.b) != c.near || Near(c.b, c.a) != c.near {
			t.Errorf("%v and %v: near %v, want %v", c.a, c.b, !c.near, c.near)
		}
	}
}

// TestAbsenceIsLongerThanSomeLooks shows that a watchdog that is merely late does not count as absent.
func TestAbsenceIsLongerThanSomeLooks(t *testing.T) {
	const every = 100 * time.Millisecond
	if a := Absence(every, 5*every-1); a != 0 {
		t.Errorf("absent for %v after four looks and a bit", a)
	}
	if a := Absence(every, 3*time.Second); a != 3*time.Second {
		t.Errorf("absent for %v of 3 s", a)
	}
}
