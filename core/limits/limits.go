// Package limits holds the depths of the queues before a GPU, and the times after which each room considers a GPU or
// a whole backend hung. The room closest to the GPU gives up first: the executor loses the batches of one device, and
// the backend those of one GPU. The scheduler comes last, since it can only cut a backend's link, which loses the
// batches of all its GPUs (decision 0048). deadline.go lists the share of a request's deadline that each room takes
// (decision 0163).
package limits

import "time"

// Depths per GPU.
const (
	Orders = 8 // batches at a backend; the scheduler sends at most three
	Slots  = 4 // batches with memory: one running, one behind it, one being fetched, one being sent
	Ahead  = 2 // batches at an executor: one running, one committed behind it
)

// Hang limits of a batch with profile ℓ, not counting its waits for others.
const (
	factor       = 20
	backendLeast = time.Second
	deviceLeast  = 5 * time.Second
	unprofiled   = 10 * time.Second
	engineLeast  = 5 * time.Second
)

// Moves is the time after which a model being moved between two memories counts as hung, and with it the device.
const Moves = deviceLeast

// Copies is the time after which copies alone count as hung: those of an abandoned slot, or of a batch behind a hung
// one. Their results are discarded.
const Copies = 200 * time.Millisecond

// Backend returns the time after which a backend answers for a GPU's hung batch and sends that GPU no more until it
// recovers.
func Backend(l time.Duration) time.Duration { return max(backendLeast, factor*l) }

// Device returns the time after which an executor gives its device up for good; l is 0 for a batch without a profile.
func Device(l time.Duration) time.Duration {
	if l == 0 {
		return unprofiled
	}
	return max(deviceLeast, 2*factor*l)
}

// Engine returns how long after a batch's planned end the scheduler waits for its report before it cuts the backend's
// link. It is longer than any backend takes to answer.
func Engine(l time.Duration) time.Duration { return engineLeast + 2*factor*l }
