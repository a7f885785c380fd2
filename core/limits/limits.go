// Package limits says how many batches may wait before a GPU, and after what time each room considers a GPU or a whole
// backend hung. The backend gives up first and loses the batches of one GPU. The executor gives up later, because it
// gives its device up for good. The scheduler is the last: it can only cut the backend's link, which loses the batches of
// all its GPUs (decision 0048). deadline.go says which part of a request's deadline each room takes (decision 0163).
package limits

import "time"

// Depths per GPU.
const (
	Orders = 8 // batches that a backend accepts; the scheduler sends at most three
	Slots  = 4 // batches that have memory: one runs, one is next, one fetches its inputs, one sends its outputs
	Ahead  = 2 // batches that an executor has: one runs, one is next
)

// Hang limits of a batch whose profile says ℓ. The time that it waits for other batches does not count.
const (
	factor       = 20
	backendLeast = time.Second
	deviceLeast  = 5 * time.Second
	unprofiled   = 10 * time.Second
	engineLeast  = 5 * time.Second
)

// Moves is the time after which a copy of a model from one memory to another counts as hung. Its device then counts as
// hung as well.
const Moves = deviceLeast

// Copies is the time after which copies whose results are discarded count as hung: the copies of an abandoned slot, or of
// a batch that follows a hung one.
const Copies = 200 * time.Millisecond

// Backend returns the time after which a backend answers the requests of a hung batch itself. The GPU gets no more
// batches until it recovers.
func Backend(l time.Duration) time.Duration { return max(backendLeast, factor*l) }

// Device returns the time after which an executor gives up its device for good. l is 0 if the batch has no profile.
func Device(l time.Duration) time.Duration {
	if l == 0 {
		return unprofiled
	}
	return max(deviceLeast, 2*factor*l)
}

// Engine returns how long after a batch's planned end the scheduler waits for its report before it cuts the backend's
// link. It is longer than any backend takes to answer.
func Engine(l time.Duration) time.Duration { return engineLeast + 2*factor*l }
