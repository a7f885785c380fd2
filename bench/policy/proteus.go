package policy

import (
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

// NewProteus returns Proteus's adaptive batching (Ahmad et al., ASPLOS '24, §5), per device: with q queued requests
// whose first expires at T, a device waits for one more until T − ℓ(q+1), and then runs the q. There is one variant
// per model, so accuracy scaling plays no part here. A device hosts one variant, so models have GPUs of their own in
// proportion to their load; only with more models than GPUs they are packed as for Nexus, and a device runs the model
// due first. The paper does not say which requests to drop when a queue holds more than its head's deadline allows:
// here the largest batch that can run in time goes first, which gave a higher goodput than the prefix.
func NewProteus(w *sim.World) sim.Server {
	p := newPartitioned(w, 1, ownGPUs(w))
	p.next = func(now, freeAt sched.Time, d *device) (int, int, int, sched.Time) {
		best, skip, size, due := 0, 0, 0, sched.Never
		for k := range d.sessions {
			if d.queues[k].Len() == 0 || !p.pruneHeads(now, freeAt, d, k) {
				continue
			}

			q, m := &d.queues[k], d.sessions[k].model
			h, b := largestBatch(w, q, m, now, freeAt)

			// It waits until the time after which one more request would be too late.
			at := w.Deadline(q.At(h)) - sched.Time(execTime(w, m, b+1)+w.Lead(b+1))
			if b == w.Models[m].Profile.Max() {
				at = now
			}
			if at < due {
				best, skip, size, due = k, h, b, at
			}
		}

		if due > now {
			return 0, 0, 0, due
		}
		return best, skip, size, 0
	}
	return p
}
