package sched

import (
	"testing"
	"time"
)

// TestShortQueueFillsTheGPU: if fewer requests may queue than a batch may hold, a full queue is a full batch: the GPU
// does not wait for one more, which would be refused.
func TestShortQueueFillsTheGPU(t *testing.T) {
	x, m := newPair(t)
	m.Profile, m.SLO, m.QueueMax = line(t, time.Millisecond, 9*time.Millisecond, 4), 2000*ms, 3
	if err := x.p.ChangeModel(0, pairModel, m); err != nil {
		t.Fatal(err)
	}
	for range 600 { // 600 requests/s; the GPU serves three in 12 ms
		x.next++
		x.p.Enqueue(x.now, Request{ID: x.next, Model: pairModel, Deadline: x.now.Add(2000 * ms)})
		x.pass(1_666_667)
	}
	if x.served < 200 {
		t.Errorf("%d requests were served in a second, want some 250", x.served)
	}
}
