package scaling

import (
	"downbeat.dev/bench/policy/queue"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// backlog is the queue of one family's requests.
type backlog struct{ queue.Requests }

// fitBatch returns the largest batch of requests from the skipth on that starts at start and meets the deadline of
// its first request.
func (q *backlog) fitBatch(w *sim.World, p *profile.Profile, skip int, start sched.Time) int {
	budget := w.Deadline(q.At(skip)).Sub(start)
	if budget <= 0 {
		return 0
	}
	n := min(q.Len()-skip, p.Max())
	if exec(p, n) <= budget {
		return n
	}
	return min(n, p.BatchMax(duration(budget)))
}

// largest returns the largest batch that can start at start and meet its first request's deadline, and the smallest
// number of requests before it that must be skipped for that size.
func (q *backlog) largest(w *sim.World, p *profile.Profile, start sched.Time) (skip, size int) {
	size = q.fitBatch(w, p, 0, start)
	for i := 1; i < q.Len()-size && size < p.Max(); i++ {
		if b := q.fitBatch(w, p, i, start); b > size {
			skip, size = i, b
		}
	}
	return skip, size
}
