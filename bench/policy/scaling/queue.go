package scaling

import (
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// queue holds requests of one family in order of arrival, which is the order of their deadlines.
type queue struct {
	requests []int32
	head     int
	kept     []int32 // scratch of cut
}

func (q *queue) len() int { return len(q.requests) - q.head }

func (q *queue) at(i int) int32 { return q.requests[q.head+i] }

func (q *queue) push(r int32) {
	if q.head > 64 && 2*q.head > len(q.requests) {
		q.requests = q.requests[:copy(q.requests, q.requests[q.head:])]
		q.head = 0
	}
	q.requests = append(q.requests, r)
}

// take removes the first n and returns them, valid until the next push.
func (q *queue) take(n int) []int32 {
	out := q.requests[q.head : q.head+n]
	q.head += n
	return out
}

// cut removes n requests behind the first skip, which stay, and returns them, valid until the next push
// or cut.
func (q *queue) cut(skip, n int) []int32 {
	if skip > 0 {
		first := q.requests[q.head : q.head+skip]
		q.kept = append(q.kept[:0], first...)
		copy(q.requests[q.head:], q.requests[q.head+skip:q.head+skip+n])
		copy(q.requests[q.head+n:], q.kept)
	}
	return q.take(n)
}

// dropBefore drops the heads whose deadlines lie before a time.
func (q *queue) dropBefore(w *sim.World, at sched.Time) {
	for q.len() > 0 && w.Deadline(q.at(0)) < at {
		w.Drop(q.take(1)[0])
	}
}

// fit returns the largest batch of requests from the skipth on that starts at start and meets the
// deadline of its first.
func (q *queue) fit(w *sim.World, p *profile.Profile, skip int, start sched.Time) int {
	budget := w.Deadline(q.at(skip)).Sub(start)
	if budget <= 0 {
		return 0
	}
	n := min(q.len()-skip, p.Max())
	if exec(p, n) <= budget {
		return n
	}
	return min(n, p.BatchMax(duration(budget)))
}

// largest returns the largest batch that can start at start and meet its first request's deadline, and
// how many requests before it are skipped for it: the fewest, and none that a batch as large could have.
func (q *queue) largest(w *sim.World, p *profile.Profile, start sched.Time) (skip, size int) {
	size = q.fit(w, p, 0, start)
	for i := 1; i < q.len()-size && size < p.Max(); i++ {
		if b := q.fit(w, p, i, start); b > size {
			skip, size = i, b
		}
	}
	return skip, size
}
