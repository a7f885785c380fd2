package scaling

import (
	"time"

	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/sim"
)

func exec(p *profile.Profile, b int) sched.Duration { return sched.Duration(p.Exec(b)) }

func duration(d sched.Duration) time.Duration { return time.Duration(d) }

// batching chooses the batch of an idle device whose queue is not empty and whose head can still be served: the
// requests skip to skip+b. b = 0: nothing before wake.
type batching func(w *sim.World, now sched.Time, h *host) (skip, b int, wake sched.Time)

// deferBatch is Proteus's adaptive batching (§5): with n queued requests whose first is due at T, wait for one more
// until T − ℓ(n+1), then run the n. The paper does not say which requests to drop when a queue holds more than its
// head's deadline allows; here the largest batch that can still run in time goes first.
func deferBatch(w *sim.World, now sched.Time, h *host) (skip, b int, wake sched.Time) {
	skip, b = h.queue.largest(w, h.profile, now)
	if b == h.profile.Max() || skip+b < h.queue.Len() {
		return skip, b, 0
	}
	due := w.Deadline(h.queue.At(skip)) - sched.Time(exec(h.profile, b+1))
	if due > now {
		return 0, 0, due
	}
	return skip, b, 0
}

// singleBatch runs one request at a time, at once: Proteus without adaptive batching.
func singleBatch(w *sim.World, now sched.Time, h *host) (skip, b int, wake sched.Time) {
	return 0, 1, 0
}

// aimdBatch is Clipper's rule (Crankshaw et al., NSDI '17, §4.3.1) on the sizes 1, 2, 4, 8: queued requests run at
// once, up to a size that grows after a full batch in time and halves after a late one.
func aimdBatch(w *sim.World, now sched.Time, h *host) (skip, b int, wake sched.Time) {
	b = min(h.queue.Len(), h.size, h.profile.Max())
	late := now.Add(exec(h.profile, b)) > w.Deadline(h.queue.At(0))
	switch {
	case late:
		h.size = max(1, h.size/2)
	case b == h.size:
		h.size = min(2*h.size, h.profile.Max())
	}
	return 0, b, 0
}

// earlyDropBatch is Nexus's rule (Shen et al., SOSP '19, §6.3). It never waits. A window of the planned batch slides
// over the queue to the first request whose deadline the whole window meets; requests before it are dropped.
func earlyDropBatch(w *sim.World, now sched.Time, h *host) (skip, b int, wake sched.Time) {
	b = h.queue.fitBatch(w, h.profile, 0, now)
	for b < min(h.planned, h.queue.Len()) && h.queue.Len() > 1 {
		w.Drop(h.queue.Take(1)[0])
		b = h.queue.fitBatch(w, h.profile, 0, now)
	}
	return 0, b, 0
}
