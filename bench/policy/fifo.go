package policy

import "downbeat.dev/core/sim"

// fifo is one model's queue: request numbers in order of arrival, which is the order of deadline.
type fifo struct {
	r    []int32
	head int
	kept []int32 // cut's scratch
}

func (q *fifo) len() int { return len(q.r) - q.head }

func (q *fifo) at(i int) int32 { return q.r[q.head+i] }

func (q *fifo) push(r int32) {
	if q.head > 64 && q.head*2 > len(q.r) {
		q.r = q.r[:copy(q.r, q.r[q.head:])]
		q.head = 0
	}
	q.r = append(q.r, r)
}

// take removes the first n and returns them, valid until the next push.
func (q *fifo) take(n int) []int32 {
	out := q.r[q.head : q.head+n]
	q.head += n
	return out
}

// cut removes n requests behind the first skip, which stay, and returns them, valid until the next
// push or cut.
func (q *fifo) cut(skip, n int) []int32 {
	if skip > 0 {
		q.kept = append(q.kept[:0], q.r[q.head:q.head+skip]...)
		copy(q.r[q.head:], q.r[q.head+skip:q.head+skip+n])
		copy(q.r[q.head+n:], q.kept)
	}
	return q.take(n)
}

// dropBefore drops the heads whose deadline is before at.
func (q *fifo) dropBefore(w *sim.World, at sim.Time) {
	for q.len() > 0 && w.Deadline(q.at(0)) < at {
		w.Drop(q.take(1)[0])
	}
}

// fit returns the largest batch of requests h, h+1, … that starts by start(b) and meets h's
// deadline.
func (q *fifo) fit(w *sim.World, m int32, h int, now, freeAt sim.Time) int {
	p := w.Models[m].Profile
	d := w.Deadline(q.at(h))
	n := min(q.len()-h, p.Max())
	lo := 0
	for lo < n {
		b := (lo + n + 1) / 2
		start := max(now.Add(w.Lead(b)), freeAt)
		if start.Add(sim.Duration(p.Exec(b))) <= d {
			lo = b
		} else {
			n = b - 1
		}
	}
	return lo
}

// execTime returns ℓ(b) of model m.
func execTime(w *sim.World, m int32, b int) sim.Duration {
	return sim.Duration(w.Models[m].Profile.Exec(b))
}
