package sched

import vocabulary "downbeat.dev/core/model"

// What becomes of a request that a backend had and did not answer. Others get it once: it may be what the first GPU died of.
// One that never ran has harmed nobody and may be tried again as often as its deadline allows.

// What has happened to a request at backends. The driver keeps it in Request.Flags.
const (
	WasLost  uint8 = 1 << iota // a backend was lost with it once, or failed it
	GaveBack                   // in a batch under way: its backend gave it back
	Unrun                      // with GaveBack: before it ran
	Broke                      // it failed with ExecutionFailed
	Unread                     // it failed with InputUnavailable
	Told                       // with GaveBack: its frontend was told
)

// UnreadFor is how long it is remembered that a backend could not read from a frontend: about as long as a suspect
// one is not asked again (decision 0044).
const UnreadFor Duration = 1e9

// AfterFailure returns the flags that a request gets when a backend gives a reason instead of an output. untold says that the
// backend left it to the scheduler to tell the frontend. 0: the request has ended.
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
	return GaveBack | Told // others would do no better
}

// BlamesGPU says whether a reason may be the GPU's or its backend's. What a backend cannot read from a frontend, and leaves to
// others, says nothing of its GPUs.
func BlamesGPU(why vocabulary.Reason, untold bool) bool {
	return why == vocabulary.ExecutionFailed || why == vocabulary.InputUnavailable && !untold
}

// MayTryAgain says whether a request that was given back is queued again.
func MayTryAgain(past uint8) bool { return past&Unrun != 0 || past&WasLost == 0 }

// PastOf returns what is kept of a request's past when it is queued again. What never ran has been lost to nobody: its end is
// what the queue makes of it.
func PastOf(past uint8) uint8 {
	if past&Unrun == 0 {
		past |= WasLost
	}
	return past & (WasLost | Broke | Unread)
}

// ReasonLost is why a request that was given to others ends when these cannot serve it in time.
func ReasonLost(past uint8) vocabulary.Reason {
	switch {
	case past&Broke != 0:
		return vocabulary.ExecutionFailed
	case past&Unread != 0:
		return vocabulary.InputUnavailable
	}
	return vocabulary.BackendLost
}

// ReasonTold returns the reason that a queued request's frontend is told: of the failure that cost the request its time, not of
// the deadline that it missed for it.
func ReasonTold(past uint8, why vocabulary.Reason) vocabulary.Reason {
	if past&WasLost != 0 && (why == vocabulary.DeadlineCannotBeMet || why == vocabulary.NoBackend || why == vocabulary.DeadlinePast) {
		return ReasonLost(past)
	}
	return why
}

// GroupsToAvoid returns which GPUs must not get a request that is given back: those of the backend that failed it, and those of
// all backends that could not read from its frontend lately. It is none where no other GPU serves the model, or nothing failed.
// servedBeside says whether a GPU outside of some groups serves the request's model.
func GroupsToAvoid(past uint8, failed, unread Groups, servedBeside func(Groups) bool) Groups {
	if past&(Broke|Unread) == 0 || past&GaveBack == 0 {
		return 0
	}

	// No request is spent on finding out again which backends cannot read from its frontend.
	if past&Unread != 0 && unread != 0 && servedBeside(unread|failed) {
		return unread | failed
	}
	if servedBeside(failed) {
		return failed
	}
	return 0
}

// LeastUsedGroup returns the group that the fewest of some backends are of.
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
