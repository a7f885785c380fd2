package sched

import "testing"

// TestBatchTakesTheQueuesMemory: while queues are far, a batch takes its queue's memory and copies nothing. A queue that
// had grown goes on in a piece of its present size, so that it does not stay large for ever.
func TestBatchTakesTheQueuesMemory(t *testing.T) {
	for _, x := range []struct{ had, batch, rest, want int }{
		{64, 20, 0, 64}, {64, 20, 20, 64}, {128, 20, 5, 64}, {1024, 20, 20, 64}, {1024, 64, 0, 128}, {256, 64, 64, 256}, {128, 1, 1, 32},
	} {
		p := NewPartition(Options{})
		p.near = 0
		m := &model{q: queue{buf: p.out.memory.take(x.had)}}
		for i := range x.batch + x.rest {
			r, _ := m.q.insert(Time(i))
			r.ID = RequestID(i)
		}

		before := m.q.buf
		batch, piece := p.takeBatch(m, x.batch)
		if len(batch) != x.batch || &batch[0] != &before[0] || &piece[0] != &before[0] {
			t.Errorf("%+v: a batch of %d is elsewhere than its queue was", x, len(batch))
		}
		if len(m.q.buf) != x.want || m.q.len() != x.rest || x.rest > 0 && m.q.at(0).ID != RequestID(x.batch) {
			t.Errorf("%+v: the queue has %d requests in a piece for %d, want one for %d", x, m.q.len(), len(m.q.buf), x.want)
		}
	}
}
