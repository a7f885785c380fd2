// Package limits is the one table of how deep the queues in front of a GPU are, and of how long each room waits for a
// batch before it takes the GPU, or the whole backend, for one that hangs. Whoever is nearer to the GPU gives up first:
// the executor loses the batches of one device, the backend those of one GPU; the scheduler, which can only cut a
// backend's link and so costs all its GPUs what they hold, comes last (decision 0048). And it is the one page of what
// each room takes from a request's deadline (deadline.go, decision 0163).
package limits

import "time"

// Depths, of one GPU.
const (
	Orders = 8 // batches of a backend at a time; the scheduler sends at most three
	Slots  = 4 // batches with memory: one running, one behind it, one being fetched, one being sent
	Ahead  = 2 // batches of an executor: one runs, one is behind it, settled
)

// Hang limits: of a batch that its profile gives ℓ, beside what it waits for others.
const (
	factor       = 20
	backendLeast = time.Second
	deviceLeast  = 5 * time.Second
	unprofiled   = 10 * time.Second
	engineLeast  = 5 * time.Second
)

// Moves is after how long a content that is on its way between two memories is taken for one that will never arrive: the
// device hangs.
const Moves = deviceLeast

// Copies is after how long copies alone, of a slot that nobody waits for any more or of a batch behind one that hangs, are
// taken for ones that never end: what they read then goes nowhere.
const Copies = 200 * time.Millisecond

// Backend is after how long a backend answers for a GPU that has a batch, and sends it no more until it is back.
func Backend(l time.Duration) time.Duration { return max(backendLeast, factor*l) }

// Device is after how long an executor gives its device up for good; 0: of a batch without a profile.
func Device(l time.Duration) time.Duration {
	if l == 0 {
		return unprofiled
	}
	return max(deviceLeast, 2*factor*l)
}

// Engine is how long after its planned end the scheduler waits for word of a batch before it cuts the backend's link:
// longer than any backend takes to answer for it.
func Engine(l time.Duration) time.Duration { return engineLeast + 2*factor*l }
