package sched

// A service with several homes chooses among them ahead of time. What such services have queued is placed in a tentative
// schedule, the one whose head must start first before the others, and only what is to start now is offered to a
// Ranker. So a batch takes a lighter variant or another kind of GPU as soon as those before it leave too little of
// what it would rather have, not when its deadline forces it to: by then the variants that take long, on the kinds
// that are slow, are no longer to be had. What does not start now is placed anew when something has changed.

// places is the tentative schedule of a Partition.
type places struct {
	outlooks []Outlook  // by sub-cluster
	free     []Outlook  // by sub-cluster: the same with what has been placed so far
	loads    []homeLoad // by sub-cluster
	queued   []int32    // places in models: those with several homes that may have something queued
	changed  []int32    // those of them that have changed since the latest schedule
	set      []int32    // scratch: those that are placed
	round    uint32     // of schedules, so that each service counts once in one
	looked   int        // services placed since queued was cleaned
	whole    bool       // all are to be placed
	stale    bool       // something has changed since the latest schedule
	due      Time       // when to look at all again
}

const (
	// placedMax is how many services with something queued are all placed anew whenever anything changes. Of more, those are that
	// have changed or are due, by what is free now: what a schedule costs does not grow with the number of services.
	placedMax = 32
	// cleanAfter is how many times as many as are listed are placed before those that have nothing queued are taken off the list.
	cleanAfter = 8
	// growthShare is by which share the batch of a service that waits may grow before it is placed anew.
	growthShare = 8
	// waitPrice is what a second's wait costs, in units of accuracy: at the right prices several ways to answer are
	// equally good, and the one at hand is better.
	waitPrice = 0.1
	// execPrice is what a second of execution costs on GPUs that nobody else wants: of two ways that answer alike the one that
	// answers sooner is better.
	execPrice = 0.02
	// gainLeast is by which factor a request must get cheaper for a batch to wait for more.
	gainLeast = 1.02
	// placeAgain is after what time a home that gave a GPU which was of no use is asked again, and a schedule that could not be
	// made is tried again.
	placeAgain Duration = 1_000_000
)

// SetOutlook says when the next GPUs of a sub-cluster are free.
func (p *Partition) SetOutlook(o *Outlook) {
	s := p.places
	if s == nil || o.SubCluster >= SubClusterLimit {
		return
	}

	// Sub-clusters come to be known by their first outlook.
	for int(o.SubCluster) >= len(s.outlooks) {
		s.outlooks, s.free = append(s.outlooks, Outlook{}), append(s.free, Outlook{})
	}
	if known := &s.outlooks[o.SubCluster]; *known != *o {
		// Among many services each has a time at which it looks again, if any GPU is to be free at all.
		if len(s.queued) > 0 && (len(s.queued) <= placedMax || known.N == 0) {
			s.stale, s.whole = true, true
		}

		*known = *o
	}
}

// Spread says whether the Partition has services with several homes: their driver tells outlooks and calls Place.
func (p *Partition) Spread() bool { return p.places != nil }

// Waits says whether a service with several homes may have something queued, so that outlooks matter.
func (p *Partition) Waits() bool { return p.places != nil && len(p.places.queued) > 0 }

// Place decides where what services with several homes have queued is answered, if anything has changed. It is to be called
// after each call or burst of calls, with the newest outlooks.
func (p *Partition) Place(now Time) {
	s := p.places
	if s == nil || !s.stale {
		return
	}

	// A GPU that is on its way back to its Ranker is in no outlook: its next place would be taken for lost.
	if now = p.clock(now); len(p.out.Frees) > 0 {
		s.due = min(s.due, now.Add(placeAgain))
		return
	}
	p.placeQueues(now)
}
