package sched

import vocabulary "downbeat.dev/core/model"

// This file decides what happens to a request that a backend received and did not answer. Other backends get it at
// most once, because it may be what the first GPU died of. A request that never ran has done no harm and may be
// retried as often as its deadline allows.

// A request's history at backends. The driver keeps it in Request.Flags.
const (
	WasLost  uint8 = 1 << iota // a backend was lost with it once, or failed it
	GaveBack                   // in a batch under way: its backend gave it back
	Unrun                      // with GaveBack: before it ran
	Broke                      // it failed with ExecutionFailed
	Unread                     // it failed with InputUnavailable
	Told                       // with GaveBack: its frontend has the reason
)

// UnreadFor is how long a backend's failure to read from a frontend is remembered: about as long as a suspect backend
// is left alone (decision 0044).
const UnreadFor Duration = 1e9

// AfterFailure returns the flags of a request whose backend returned a reason instead of an output. untold means that
// the backend leaves it to the scheduler to inform the frontend. 0: the request has ended.
func AfterFailure(why vocabulary.Reason, untold bool) uint8 {
	switch {
	case why == vocabulary.BackendLost:
		return GaveBack
	case why == vocabulary.NoBackend:
		return GaveBack | Unrun
	case !untold:
		return 0
	case why == vocabulary.ExecutionFailed:
		return GaveBack | Broke
	case why == vocabulary.InputUnavailable:
		return GaveBack | Unread
	}
	return GaveBack | Told // other backends would do no better
}

// BlamesGPU reports whether a reason may be the fault of the GPU or its backend. If a backend cannot read from a
// frontend and leaves the request to others, that says nothing about its GPUs.
func BlamesGPU(why vocabulary.Reason, untold bool) bool {
	return why == vocabulary.ExecutionFailed || why == vocabulary.InputUnavailable && !untold
}

// MayTryAgain reports whether a request that was given back is queued again.
func MayTryAgain(past uint8) bool { return past&Unrun != 0 || past&WasLost == 0 }

// PastOf returns the history that a requeued request keeps. A request that never ran keeps none: the queue determines
// its end.
func PastOf(past uint8) uint8 {
	if past&Unrun == 0 {
		past |= WasLost
	}
	return past & (WasLost | Broke | Unread)
}

// ReasonLost returns the reason of a requeued request that no other backend serves in time.
func ReasonLost(past uint8) vocabulary.Reason {
	switch {
	case past&Broke != 0:
		return vocabulary.ExecutionFailed
	case past&Unread != 0:
		return vocabulary.InputUnavailable
	}
	return vocabulary.BackendLost
}

// ReasonTold returns the reason that a queued request's frontend receives: the failure that cost the request its
// time, not the deadline that it missed because of it.
func ReasonTold(past uint8, why vocabulary.Reason) vocabulary.Reason {
	if past&WasLost != 0 && (why == vocabulary.DeadlineCannotBeMet || why == vocabulary.NoBackend || why == vocabulary.DeadlinePast) {
		return ReasonLost(past)
	}
	return why
}

// GroupsToAvoid returns the GPUs that must not get a request that was given back: those of the backend that failed
// it, and those of all backends that recently could not read from its frontend. It returns none if no other GPU
// serves the model, or nothing failed. servedBeside reports whether a GPU outside some groups serves the request's
// model.
func GroupsToAvoid(past uint8, failed, unread Groups, servedBeside func(Groups) bool) Groups {
	if past&(Broke|Unread) == 0 || past&GaveBack == 0 {
		return 0
	}

	// No request is spent on testing again which backends cannot read from its frontend.
	if past&Unread != 0 && unread != 0 && servedBeside(unread|failed) {
		return unread | failed
	}
	if servedBeside(failed) {
		return failed
	}
	return 0
}

// LeastUsedGroup returns the group with the fewest of some backends.
func LeastUsedGroup(used []Groups) Groups {
	var uses [GroupsMax]int
	for _, g := range used {
		for n := range uses {
			uses[n] += int(g >> n & 1)
		}
	}

	least := 0
	for n := range uses {
		if uses[n] < uses[least] {
			least = n
		}
	}
	return GroupOf(uint32(least))
}
