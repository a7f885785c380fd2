package swarm

import "downbeat.dev/core/sched"

// events is a min-heap of future events by (time, number), which is a total order.
type events struct {
	heap []event
	seq  uint64
}

type event struct {
	at  Time
	seq uint64
	do  func()
}

func (a *event) precedes(b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (q *events) nextTime() Time {
	if len(q.heap) == 0 {
		return sched.Never
	}
	return q.heap[0].at
}

func (q *events) addEvent(at Time, do func()) {
	q.seq++
	it := event{at, q.seq, do}

	// Four children per node keep the heap flat: an event compares with half as many parents as in a binary heap.
	h := append(q.heap, event{})
	i := len(h) - 1
	for i > 0 && it.precedes(&h[(i-1)/4]) {
		h[i] = h[(i-1)/4]
		i = (i - 1) / 4
	}

	h[i] = it
	q.heap = h
}

func (q *events) takeFirst() func() {
	h := q.heap
	top := h[0].do
	n := len(h) - 1
	it := h[n]

	// Release the closure.
	h[n] = event{}
	h = h[:n]

	for i := 0; n > 0; {
		c, end := 4*i+1, min(4*i+5, n)
		if c >= n {
			h[i] = it
			break
		}
		for k := c + 1; k < end; k++ {
			if h[k].precedes(&h[c]) {
				c = k
			}
		}
		if !h[c].precedes(&it) {
			h[i] = it
			break
		}
		h[i] = h[c]
		i = c
	}

	q.heap = h
	return top
}
