package limits

import "time"

// hooksLatest is how many of a model's latest hooks count: few enough to follow a change within a second or so.
const hooksLatest = 32

// LearntShare is the part of a budget that an expected time may take: a hook may be quicker than those before it, and a
// request that is refused for their sake would never tell.
const LearntShare = 2

// HastenLeast is how much earlier than expected a hook must return for the scheduler to be told. The word must arrive
// before the request's time: later it is another request.
const HastenLeast = time.Millisecond

// Hooks measures how long the hooks of a model take, to expect the next one.
type Hooks struct {
	latest [hooksLatest]time.Duration
	n      int
}

// Add records a hook that has returned.
func (h *Hooks) Add(took time.Duration) {
	h.latest[h.n%hooksLatest] = took
	h.n++
}

// Expected returns the time within which nearly every hook returns: the second longest of the latest 32, so that a single
// stall does not count; while there are fewer, the longest; 0: none has returned yet. A hook that takes longer costs a
// place in a batch, and one that takes less costs nothing that the frontend's word does not make good.
func (h *Hooks) Expected() time.Duration {
	longest, second := time.Duration(0), time.Duration(0)
	for _, took := range h.latest[:min(h.n, hooksLatest)] {
		if took > longest {
			longest, second = took, longest
		} else {
			second = max(second, took)
		}
	}

	if h.n < hooksLatest {
		return longest
	}
	return second
}
