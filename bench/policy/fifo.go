package policy

import (
	"downbeat.dev/bench/policy/queue"
	"downbeat.dev/core/sim"
)

// fifo is the queue of one model's requests.
type fifo struct{ queue.Requests }

// fitBatch returns the largest batch of requests h, h+1, … that starts by start(b) and meets h's deadline.
func (q *fifo) fitBatch(w *sim.World, m int32, h int, now, freeAt sim.Time) int {
	p := w.Models[m].Profile
	d := w.Deadline(q.At(h))
	n := min(q.Len()-h, p.Max())
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
