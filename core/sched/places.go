package sched

// A service with several homes chooses among them ahead of time. A tentative schedule places the queued requests of
// such services, starting with the service whose head must start first, and only batches that start now are offered
// to a Ranker. So a batch takes a lighter variant or another kind of GPU as soon as the batches before it leave too
// little of its preferred one, and not when its deadline forces it to: by then the slow variants on the slow kinds of
// GPU are no longer possible. Batches that do not start now are placed anew after a change.

// places is the tentative schedule of a Partition.
type places struct {
	outlooks  []Outlook   // by sub-cluster
	free      []Outlook   // by sub-cluster: outlooks minus the batches placed so far
	keptFree  []Outlook   // the same of the schedule that may be restored; see chooseOrder
	loads     []homeLoad  // by sub-cluster
	impatient []impatient // by sub-cluster
	queued    []int32     // indices in models: services with several homes that may have queued requests
	changed   []int32     // those of them that have changed since the latest schedule
	set       []int32     // scratch: those being placed
	order     []heapItem  // scratch: a heap of those that have requests without a place
	round     uint32      // number of the schedule, so that each service counts once in it
	looked    int         // services placed since queued was last cleaned
	whole     bool        // place all of them
	few       bool        // all of them were placed together at the latest schedule
	stale     bool        // something has changed since the latest schedule
	due       Time        // when to check all of them again
	compares  bool        // two orders are compared
	byBatch   bool        // services are placed in the second order; see startBy
	tally                 // of the schedule, while two orders are compared
}

const (
	// placedMax is the number of services with queued requests up to which any change places all of them anew. With
	// more services, only those that have changed or are due are placed, by the GPUs that are free now: the cost of a
	// schedule does not grow with the number of services.
	placedMax = 32
	// cleanAfter is the number of placements, in multiples of the list's length, after which services without queued
	// requests are removed from the list.
	cleanAfter = 8
	// growthShare is the divisor of a waiting service's batch size that gives the growth after which it is placed
	// anew.
	growthShare = 8
	// waitPrice is the price of a second's wait, in units of accuracy: at the right prices several ways to answer are
	// equally good, and the available one is better.
	waitPrice = 0.1
	// execPrice is the price of a second of execution on GPUs that no other service wants: of two ways with equal
	// answers the faster is better.
	execPrice = 0.02
	// gainLeast is the factor by which a request must get cheaper for a batch to wait for more.
	gainLeast = 1.02
	// placeAgain is the time after which a home whose last GPU was of no use is asked again, and a schedule that
	// could not be made is retried.
	placeAgain Duration = 1_000_000
)

// SetOutlook records when the next GPUs of a sub-cluster become free.
func (p *Partition) SetOutlook(o *Outlook) {
	s := p.places
	if s == nil || o.SubCluster >= SubClusterLimit {
		return
	}

	// A sub-cluster's first outlook creates its entry.
	for int(o.SubCluster) >= len(s.outlooks) {
		s.outlooks, s.free, s.keptFree = append(s.outlooks, Outlook{}), append(s.free, Outlook{}), append(s.keptFree, Outlook{})
	}
	if known := &s.outlooks[o.SubCluster]; *known != *o {
		// With many services each has its own time for the next check, unless no GPU becomes free at all.
		if len(s.queued) > 0 && (len(s.queued) <= placedMax || known.N == 0) {
			s.stale, s.whole = true, true
		}

		*known = *o
	}
}

// Spread reports whether the Partition has services with several homes: their driver sets outlooks and calls Place.
func (p *Partition) Spread() bool { return p.places != nil }

// Waits reports whether a service with several homes may have queued requests, so that outlooks matter.
func (p *Partition) Waits() bool { return p.places != nil && len(p.places.queued) > 0 }

// Place decides where the queued requests of services with several homes are answered, if anything has changed. The
// driver calls it after each call or burst of calls, with the newest outlooks.
func (p *Partition) Place(now Time) {
	s := p.places
	if s == nil || !s.stale {
		return
	}

	// A GPU on its way back to its Ranker is in no outlook: its next place would seem lost.
	if now = p.clock(now); len(p.out.Frees) > 0 {
		s.due = min(s.due, now.Add(placeAgain))
		return
	}
	p.placeQueues(now)
}
