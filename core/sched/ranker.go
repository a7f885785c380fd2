package sched

// Ranker holds the GPUs of one sub-cluster and the candidates that ask for one: Symphony's RankThread. Most calls only
// record news; Advance matches candidates with GPUs and returns the grants. Not safe for concurrent use.
type Ranker struct {
	o       Options
	number  uint32
	now     Time
	gpus    []gpu
	later   [][unfinishedMax - 1]order // by GPU: orders sent after the first
	holds   []Time                     // by GPU: end of the hold, if it is held
	idle    bitset
	ripe    heap // models by Rank
	waiting heap // models by the time when their expected growth falls to growthBase
	rivals  []rival
	rests   []rest // by model
	count   int    // GPUs present
	held    int    // of these, held
	demand  int64  // Σ of the candidates' demands
	least   int64  // Σ of their least possible demands
	grants  []Grant
	// Candidates that Advance has removed from a heap for now; see postponeTop.
	postponed []heapItem
	spent     Duration // Σ of planned execution, corrected by completions
	stats     RankerStats
	busy      busyGPUs
	spare     *spare // nil: never offered any
	moved     bool   // a GPU's free time may have changed since the latest Outlook
}

// RankerStats are a Ranker's counters since its creation.
type RankerStats struct {
	Grants, Early, Unused uint64 // grants; of these, to waiting candidates; of these, returned unused
	Stale                 uint64 // ignored messages: old candidates, removed GPUs
	Stalled               uint64 // times a GPU was withheld because completions were missing
	ClockBack             uint64 // calls with an earlier now than before
}

// NewRanker returns the Ranker of a sub-cluster, without GPUs.
func NewRanker(subCluster uint32, o Options) *Ranker {
	return &Ranker{o: o, number: subCluster, busy: busyGPUs{least: Never}}
}

// SetNetworkDelay replaces d_ctrl and d_data. Negative values count as 0.
func (r *Ranker) SetNetworkDelay(ctrl, data Duration) {
	r.o.Ctrl, r.o.Data = max(0, ctrl), max(0, data)
}

// Advance grants GPUs to candidates. The grants are valid until the next Advance.
func (r *Ranker) Advance(now Time) []Grant {
	now = r.clock(now)
	r.grants = r.grants[:0]

	// By now batches and steps have ended as planned, whether or not their reports have arrived.
	r.collectFree(now)
	if r.spare != nil {
		r.watchSteps(now)
	}

	// Most calls have no candidate to grant a GPU to.
	if r.ripe.len() > 0 {
		r.grantRipe(now)
	}
	if r.waiting.len() > 0 && r.idle.n > 0 {
		r.grantWaiting(now)
	}

	// Spare work comes last, on GPUs that no request wants.
	if r.spare != nil {
		r.startSteps(now)
	}
	return r.grants
}

// grantRipe grants GPUs to the ripe candidates, in their order, as long as a GPU becomes free in time.
func (r *Ranker) grantRipe(now Time) {
	for r.ripe.len() > 0 {
		m := r.ripe.top().id
		id, ok := r.pickGPU(now, r.lead(r.rivals[m].size))
		if !ok {
			break
		}

		// A GPU that all requests of the candidate avoid is of no use to it.
		if r.gpus[id].group&r.rivals[m].avoid != 0 {
			if id, ok = r.otherGPU(r.rivals[m].avoid); !ok {
				r.postponeTop(&r.ripe)
				continue
			}
		}
		r.ripe.remove(r.rivals, m)
		r.grant(ModelID(m), id, Grant{})
	}
	r.restorePostponed(&r.ripe)
}

// grantWaiting grants the remaining idle GPUs to waiting candidates that hardly grow any more.
func (r *Ranker) grantWaiting(now Time) {
	for r.waiting.len() > 0 && r.idle.n > 0 {
		m := r.waiting.top().id
		v, limit := &r.rests[m], r.growthMax()

		// The heap is ordered by the time when growth ends: if the first candidate waits, all do.
		if v.pace.growth(now, v.last, v.execAt, int(r.rivals[m].size)) > limit {
			break
		}
		id := GPUID(r.idle.first())
		if avoid := r.rivals[m].avoid; r.gpus[id].group&avoid != 0 {
			other, ok := r.otherGPU(avoid)
			if !ok {
				r.postponeTop(&r.waiting)
				continue
			}
			id = other
		}
		r.waiting.remove(r.rivals, m)
		r.stats.Early++
		r.grant(ModelID(m), id, Grant{Early: true, Growth: limit})
	}
	r.restorePostponed(&r.waiting)
}

// NextWake returns the latest time for the next Advance; it may be early, never late.
func (r *Ranker) NextWake() Time {
	// A grant needs a free GPU, so nothing happens before the first busy one is about to become free.
	at := r.busy.least
	switch {
	case at == Never:
	case r.ripe.len() > 0:
		v := &r.rivals[r.ripe.top().id]
		if v.avoid != 0 {
			at -= Time(r.lead(1)) // by then the GPU is idle, and others may be
		} else {
			at -= Time(r.lead(v.size))
		}
	case r.waiting.len() > 0 || r.spare != nil:
		at -= Time(r.lead(1))
	default:
		at = Never
	}

	// Spare work may need a wake-up sooner.
	if r.spare != nil {
		at = min(at, r.watchAt())
	}
	return at
}

// Stats returns the counters.
func (r *Ranker) Stats() RankerStats { return r.stats }

// GPUs returns how many GPUs are present.
func (r *Ranker) GPUs() int { return r.count }

// lead returns how long before its start a batch must be sent.
func (r *Ranker) lead(size uint32) Duration { return r.o.Ctrl + Duration(size)*r.o.Data }

// earliestStart returns when a batch of one, sent now, starts. A GPU that is free by then counts as idle; otherwise it
// would wait for a network delay between two batches.
func (r *Ranker) earliestStart(now Time) Time { return now.Add(r.lead(1)) }

// grant gives a GPU to a model; the model's Partition decides how to use it.
func (r *Ranker) grant(m ModelID, id GPUID, how Grant) {
	g := &r.gpus[id]
	r.idle.clear(uint32(id))
	r.moved = true
	g.state = granted
	r.stats.Grants++
	if r.spare != nil {
		r.spare.noteGrant(m, id)
	}

	// A Partition does not see the GPUs, so the grant carries what it needs for its decision.
	how.Model, how.SubCluster, how.GPU = m, r.number, id
	how.Epoch, how.Group, how.Load, how.Least, how.FreeAt = g.epoch, g.group, r.load(), r.leastLoad(), g.freeAt
	r.grants = append(r.grants, how)
}

// clock returns now, but never a time before that of an earlier call.
func (r *Ranker) clock(now Time) Time {
	if now < r.now {
		r.stats.ClockBack++
		return r.now
	}
	r.now = now
	return now
}
