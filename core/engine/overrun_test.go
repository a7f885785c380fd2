package engine

import (
	"testing"

	"downbeat.dev/core/sched"
)

func TestOverrunBringsDeadlinesForward(t *testing.T) {
	var o overrun
	if m := o.margin(50e6); m != 0 {
		t.Errorf("margin %d before any batch, want 0", m)
	}
	for i := range 256 {
		o.add(int64(i) * 10_000) // up to 2.55 ms late
	}
	if m := o.margin(50e6); m < 2.4e6 || m > 2.6e6 {
		t.Errorf("margin %v, want the 99th percentile, about 2.5 ms", sched.Duration(m))
	}
	if m := o.margin(4e6); m != 1e6 {
		t.Errorf("margin %d of a budget of 4 ms, want a quarter", m)
	}
	if m := o.margin(-5); m != 0 {
		t.Errorf("margin %d of a deadline that is past, want 0", m)
	}
	for range 512 {
		o.add(-1)
	}
	if m := o.margin(50e6); m != 0 {
		t.Errorf("margin %d after batches that were on time, want 0", m)
	}
}
