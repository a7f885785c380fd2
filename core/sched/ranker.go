package sched

// Ranker holds the GPUs of one sub-cluster and the candidates that want one: Symphony's
// RankThread. Calls only record; Advance matches and returns the grants. Not safe for concurrent
// use.
type Ranker struct {
	o       Options
	number  uint32
	now     Time
	gpus    []gpu
	later   [][aheadMax - 1]order // by GPU: what was sent after the first
	holds   []Time                // by GPU: until when it is held, if it is
	idle    bitset
	ripe    heap // models by Rank
	waiting heap // models by when only growthBase is left to forgo
	rivals  []rival
	rests   []rest // by model
	count   int    // GPUs present
	held    int    // of these, held back
	demand  int64  // Σ of the rivals' demand
	least   int64  // Σ of the least that it could be
	grants  []Grant
	// Candidates that Advance has taken out of a heap, see postpone.
	postponed []heapItem
	spent     Duration // Σ of planned execution, corrected by completions
	stats     RankerStats
	busy      agenda
	spare     *spare // nil: it was never offered any
	moved     bool   // a GPU's next free time may have changed since the latest Outlook
}

// RankerStats count what a Ranker did since it was made.
type RankerStats struct {
	Grants, Early, Unused uint64 // grants; of these to waiting candidates; given back unused
	Stale                 uint64 // messages ignored: old candidates, GPUs gone
	Stalled               uint64 // times a GPU was held back because completions were missing
	ClockBack             uint64
}

// NewRanker returns the Ranker of a sub-cluster, without GPUs.
func NewRanker(subCluster uint32, o Options) *Ranker {
	return &Ranker{o: o, number: subCluster, busy: agenda{least: Never}}
}

// SetNetworkDelay replaces d_ctrl and d_data. Negative values count as 0.
func (r *Ranker) SetNetworkDelay(ctrl, data Duration) {
	r.o.Ctrl, r.o.Data = max(0, ctrl), max(0, data)
}

// Advance gives GPUs to candidates. The grants are valid until the next Advance.
func (r *Ranker) Advance(now Time) []Grant {
	now = r.clock(now)
	r.grants = r.grants[:0]

	// Time has passed: batches and steps have ended by plan, whether or not their reports are here.
	r.collect(now)
	if r.spare != nil {
		r.watchSteps(now)
	}

	// Ripe candidates first, in their order, as long as a GPU is free in time for them.
	for r.ripe.len() > 0 {
		m := r.ripe.top().id
		id, ok := r.pickGPU(now, r.lead(r.rivals[m].size))
		if !ok {
			break
		}

		// No batch goes to a GPU that every request of it avoids.
		if r.gpus[id].group&r.rivals[m].avoid != 0 {
			if id, ok = r.otherGPU(r.rivals[m].avoid); !ok {
				r.postpone(&r.ripe)
				continue
			}
		}
		r.ripe.remove(r.rivals, m)
		r.grant(ModelID(m), id, Grant{})
	}
	r.resume(&r.ripe)

	// What is left idle goes to waiting candidates that hardly grow any more.
	for r.waiting.len() > 0 && r.idle.n > 0 {
		m := r.waiting.top().id
		v, limit := &r.rests[m], r.growthMax()

		// The heap is in order of when little growth is left: where the first waits, so do the others.
		if v.pace.growth(now, v.last, v.execAt, int(r.rivals[m].size)) > limit {
			break
		}
		id := GPUID(r.idle.first())
		if avoid := r.rivals[m].avoid; r.gpus[id].group&avoid != 0 {
			other, ok := r.otherGPU(avoid)
			if !ok {
				r.postpone(&r.waiting)
				continue
			}
			id = other
		}
		r.waiting.remove(r.rivals, m)
		r.stats.Early++
		r.grant(ModelID(m), id, Grant{Early: true, Growth: limit})
	}
	r.resume(&r.waiting)

	// Spare work comes last: it takes what no request wanted in this turn.
	if r.spare != nil {
		r.startSteps(now)
	}
	return r.grants
}

// NextWake returns when Advance must be called at the latest; it may be early, never late.
func (r *Ranker) NextWake() Time {
	// A grant needs a free GPU, so nothing happens before the first busy one is about to be free.
	at := r.busy.least
	switch {
	case at == Never:
	case r.ripe.len() > 0:
		v := &r.rivals[r.ripe.top().id]
		if v.avoid != 0 {
			at -= Time(r.lead(1)) // then the GPU is idle, and others may be, too
		} else {
			at -= Time(r.lead(v.size))
		}
	case r.waiting.len() > 0 || r.spare != nil:
		at -= Time(r.lead(1))
	default:
		at = Never
	}

	// Spare work's own news may be due sooner.
	if r.spare != nil {
		at = min(at, r.watchAt())
	}
	return at
}

// Stats returns the counters.
func (r *Ranker) Stats() RankerStats { return r.stats }

// GPUs returns how many GPUs are present.
func (r *Ranker) GPUs() int { return r.count }

func (r *Ranker) lead(size uint32) Duration { return r.o.Ctrl + Duration(size)*r.o.Data }

// soon returns the earliest start of a batch that is sent now. A GPU that is free by then counts as
// idle: otherwise it would wait a network delay between two batches.
func (r *Ranker) soon(now Time) Time { return now.Add(r.lead(1)) }

func (r *Ranker) grant(m ModelID, id GPUID, how Grant) {
	g := &r.gpus[id]
	r.idle.clear(uint32(id))
	r.moved = true
	g.state = granted
	r.stats.Grants++
	if r.spare != nil {
		r.spare.taken(m, id)
	}

	// The grant carries what the partition decides by: it does not see the GPUs.
	how.Model, how.SubCluster, how.GPU = m, r.number, id
	how.Epoch, how.Group, how.Load, how.Least, how.FreeAt = g.epoch, g.group, r.load(), r.leastLoad(), g.freeAt
	r.grants = append(r.grants, how)
}

func (r *Ranker) clock(now Time) Time {
	if now < r.now {
		r.stats.ClockBack++
		return r.now
	}
	r.now = now
	return now
}
