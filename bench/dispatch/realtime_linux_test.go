package dispatch

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestRealTimeEnds: afterwards the threads are as before.
func TestRealTimeEnds(t *testing.T) {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil || before.Policy != unix.SCHED_NORMAL {
		t.Skip("policy", before, err)
	}
	end, err := makeRealtime()
	if err != nil {
		t.Skip(err)
	}
	a, err := unix.SchedGetAttr(0, 0)
	end()
	if err != nil || a.Policy != unix.SCHED_FIFO {
		t.Errorf("during: %+v, %v; want policy %d", a, err, unix.SCHED_FIFO)
	}
	if a, err = unix.SchedGetAttr(0, 0); err != nil || a.Policy != before.Policy || a.Nice != before.Nice {
		t.Errorf("after: %+v, %v; want %+v", a, err, before)
	}
}
