// Package limits is the one table of limits that several rooms must agree on: the depths of the queues in front of a
// GPU, the times after which each room treats a batch's GPU or backend as hanging (decision 0048), and each room's
// share of a request's deadline (deadline.go, decision 0163).
//
// The room nearest to the GPU gives up first. The executor loses the batches of one device; the backend those of one
// GPU. The scheduler comes last, because it can only cut a backend's link, which costs the batches of all its GPUs.
package limits

import "time"

// Depths per GPU.
const (
	Orders = 8 // batches of a backend at a time; the scheduler sends at most three
	Slots  = 4 // batches with memory: one running, one queued behind it, one fetching, one sending
	Ahead  = 2 // batches of an executor: one runs, one is queued behind it
)

// Hang limits of a batch with profile ℓ, not counting the time it waits for others.
const (
	factor       = 20
	backendLeast = time.Second
	deviceLeast  = 5 * time.Second
	unprofiled   = 10 * time.Second
	engineLeast  = 5 * time.Second
)

// Moves is how long a transfer between two memories may take before the device counts as hanging.
const Moves = deviceLeast

// Copies is how long copies alone may take before they count as never ending. It holds for a slot that nobody waits
// for any more and for a batch behind a hanging one; the data they read is then discarded.
const Copies = 200 * time.Millisecond

// Backend is the time after which a backend fails a GPU's batch and sends that GPU no more until the GPU returns.
func Backend(l time.Duration) time.Duration { return max(backendLeast, factor*l) }

// Device is the time after which an executor gives up its device for good; l is 0 for a batch without a profile.
func Device(l time.Duration) time.Duration {
	if l == 0 {
		return unprofiled
	}
	return max(deviceLeast, 2*factor*l)
}

// Engine is how long after a batch's planned end the scheduler waits for a report before it cuts the backend's link.
// It is longer than any backend's own limit.
func Engine(l time.Duration) time.Duration { return engineLeast + 2*factor*l }
