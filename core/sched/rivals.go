package sched

// rival is a model's newest candidate at the Ranker. It is one cache line, because neighbors may belong to different
// cores.
type rival struct {
	seq    uint64
	demand int64
	least  int64
	size   uint32
	pos    int32 // position+1 in ripe or in waiting; 0: in neither
	ripe   bool  // which of them
	known  bool
	avoid  Groups
	_      [28]byte
}

// rest is the remaining data of a waiting candidate.
type rest struct {
	execAt, last Time
	pace         Pace
}

// Candidate records a model's newest candidate. It does not keep the pointer.
func (r *Ranker) Candidate(now Time, c *Candidate) {
	r.clock(now)
	if c.Model >= IDLimit {
		r.stats.Stale++
		return
	}

	for int(c.Model) >= len(r.rivals) {
		r.rivals, r.rests = append(r.rivals, rival{}), append(r.rests, rest{})
	}
	v, id := &r.rivals[c.Model], uint32(c.Model)
	if c.Seq <= v.seq { // also for a removed model: an earlier candidate is old
		r.stats.Stale++
		return
	}

	// Keep the sums by differences, so that no candidate costs a pass over all models.
	r.demand += c.Demand - v.demand
	r.least += c.Least - v.least
	v.seq, v.size, v.known, v.demand, v.least, v.avoid = c.Seq, c.Size, !c.Gone, c.Demand, c.Least, c.Avoid

	// A candidate is in one heap at a time.
	if c.Size == 0 || c.Ripe != v.ripe {
		r.withdraw(id, v)
	}
	switch {
	case c.Size == 0:
	case c.Ripe:
		v.ripe = true
		r.ripe.set(r.rivals, id, c.Rank)
	default:
		v.ripe = false
		r.rests[id] = rest{c.ExecAt, c.Last, c.Pace}
		r.waiting.set(r.rivals, id, c.Pace.early(c.Last, c.ExecAt, int(c.Size), growthBase))
	}
}

// withdraw takes a candidate out of its heap.
func (r *Ranker) withdraw(id uint32, v *rival) {
	if v.ripe {
		r.ripe.remove(r.rivals, id)
	} else {
		r.waiting.remove(r.rivals, id)
	}
}
