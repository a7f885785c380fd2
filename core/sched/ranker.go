package sched

import "fmt"

// The states of a GPU.
const (
	absent  uint8 = iota
	idle          // in the idle set: free soon
	busy          // on the agenda until freeAt
	granted       // a partition decides what to do with it
	stalled       // completions are missing; it gets nothing until one comes
)

// aheadMax is how many batches without a completion a GPU may hold: the running one, the next,
// and one whose completion is under way. A GPU with as many counts as stalled when it would get
// another; so a backend that hangs swallows few batches.
const aheadMax = 3

type order struct {
	id    BatchID
	start Time
	exec  Duration
}

// gpu is one line of memory: cores take turns with a Ranker.
type gpu struct {
	freeAt     Time
	at         Time  // freeAt as the agenda has it
	next, prev int32 // in the agenda's slot: GPU+1, 0: none
	slot       int32 // +1; 0: in none
	epoch      uint32
	state      uint8
	ahead      uint8 // orders without a completion
	held       bool  // it gets nothing before Ranker.holds says so
	spare      bool  // it runs a step of spare work
	group      Groups
	first      order // the oldest of these; for the others see Ranker.later
}

// rival is a model's newest candidate as the Ranker knows it. A line of memory, since neighbours may
// belong to different cores.
type rival struct {
	seq    uint64
	demand int64
	least  int64
	size   uint32
	pos    int32 // in ripe or in waiting +1; 0: in neither
	ripe   bool  // which of them
	known  bool
	avoid  Groups
	_      [28]byte
}

// rest is what is known of a candidate that waits.
type rest struct {
	execAt, last Time
	pace         Pace
}

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

// AddGPU makes a GPU known, free at now. The epoch, which Grant, Batch and Free carry, tells this life
// of the id from others, also in other sub-clusters.
func (r *Ranker) AddGPU(now Time, id GPUID, epoch uint32) error {
	now = r.clock(now)
	if id >= IDLimit {
		return fmt.Errorf("sched: gpu %d: want an id below %d", id, IDLimit)
	}
	for int(id) >= len(r.gpus) {
		r.gpus, r.later, r.holds = append(r.gpus, gpu{}), append(r.later, [aheadMax - 1]order{}), append(r.holds, 0)
	}
	r.idle.grow(len(r.gpus))

	// The driver gives ids again: only a GPU that was removed makes room for one.
	g := &r.gpus[id]
	if g.state != absent {
		return fmt.Errorf("sched: gpu %d: %w", id, ErrKnown)
	}
	g.freeAt, g.epoch, g.state, g.ahead, g.held, g.spare, g.group = now, epoch, idle, 0, false, false, 0 // the agenda may still have it
	r.SetSpareOwner(id, 0)
	r.idle.set(uint32(id))
	r.count++
	return nil
}

// RemoveGPU forgets a GPU. What it was running is the driver's to resubmit or to fail.
func (r *Ranker) RemoveGPU(now Time, id GPUID) {
	r.clock(now)
	if int(id) >= len(r.gpus) || r.gpus[id].state == absent {
		return
	}

	// The agenda keeps its link: it drops GPUs that are not busy when they come first.
	r.idle.clear(uint32(id))
	r.gpus[id].state = absent
	r.release(&r.gpus[id])
	if r.gpus[id].spare {
		r.forgetStep(id, &r.gpus[id], 0)
	}
	r.count--
}

// Hold keeps a GPU from getting batches until a time; what it has stays. The load is shared by the others
// meanwhile. A later call replaces an earlier one; until now ends the hold.
func (r *Ranker) Hold(now Time, id GPUID, until Time) {
	now = r.clock(now)
	g := r.gpu(id)
	if g == nil {
		return
	}
	if !g.held {
		g.held = true
		r.held++
	}
	r.holds[id] = until

	// The hold had moved the time when the GPU is free. Without a batch it is free at once; with one, its Complete says so.
	if until <= now && g.ahead == 0 && !g.spare {
		g.freeAt = min(g.freeAt, now)
	}

	// A granted GPU is the partition's to answer for: Free places it, with the hold.
	if g.state != granted {
		r.place(now, id, g)
	}
}

// release ends a hold.
func (r *Ranker) release(g *gpu) {
	if g.held {
		g.held = false
		r.held--
	}
}

// SetNetworkDelay replaces d_ctrl and d_data. Negative values count as 0.
func (r *Ranker) SetNetworkDelay(ctrl, data Duration) {
	r.o.Ctrl, r.o.Data = max(0, ctrl), max(0, data)
}

// Candidate records a model's newest candidate.
func (r *Ranker) Candidate(now Time, c Candidate) {
	r.clock(now)
	if c.Model >= IDLimit {
		r.stats.Stale++
		return
	}

	for int(c.Model) >= len(r.rivals) {
		r.rivals, r.rests = append(r.rivals, rival{}), append(r.rests, rest{})
	}
	v, id := &r.rivals[c.Model], uint32(c.Model)
	if c.Seq <= v.seq { // also of a model that is gone: what was said before that is old
		r.stats.Stale++
		return
	}

	// The sums are kept by differences, so that no candidate costs a pass over all models.
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

// Free records the answer to a Grant.
func (r *Ranker) Free(now Time, f Free) {
	now = r.clock(now)
	g := r.gpu(f.GPU)

	// The answer may come late: the GPU was removed meanwhile, or is in another life.
	if g == nil || g.epoch != f.Epoch || g.state != granted {
		r.stats.Stale++
		return
	}

	if f.Batch == 0 {
		r.stats.Unused++
		r.place(now, f.GPU, g)
		return
	}

	exec := f.FreeAt.Sub(f.Start)
	g.ahead++
	*r.order(f.GPU, g.ahead-1) = order{f.Batch, f.Start, exec}
	if g.spare && g.ahead == 1 {
		r.spare.followed++
	}
	g.freeAt = max(g.freeAt, f.Start).Add(exec) // a completion may have moved it since the grant
	r.spent += exec
	r.place(now, f.GPU, g)
}

// Complete tells that a batch has finished, and with it those sent to the GPU before; the GPU is
// free at freeAt, which moves what is planned behind it. A batch that was never sent to the GPU,
// or has completed already, is an error and changes nothing.
func (r *Ranker) Complete(now Time, b BatchID, id GPUID, freeAt Time) error {
	now = r.clock(now)
	g := r.gpu(id)
	if g == nil {
		r.stats.Stale++
		return fmt.Errorf("sched: gpu %d: %w", id, ErrUnknown)
	}

	// Reports may overtake one another, so that the batch need not be the oldest.
	k := uint8(0)
	for k < g.ahead && r.order(id, k).id != b {
		k++
	}
	if k == g.ahead {
		r.stats.Stale++
		return fmt.Errorf("sched: batch %d on gpu %d: %w", b, id, ErrUnknown)
	}

	freeAt = max(0, freeAt)

	// The GPU was busy for less than planned if it is free before the plan's end.
	o := *r.order(id, k)
	if early := o.start.Add(o.exec).Sub(freeAt); early < o.exec {
		r.spent -= early
	} else {
		r.spent -= o.exec
	}

	// Batches before this one have ended, too: their reports are late, or lost.
	if g.spare {
		r.loseStep(id, g) // it ran before the batch, so it has ended, and nobody said so
	}

	g.ahead -= k + 1
	for i := range g.ahead {
		o := r.order(id, i)
		*o = *r.order(id, i+k+1)
		freeAt = max(freeAt, o.start).Add(o.exec)
	}

	g.freeAt = freeAt
	if g.state != granted {
		r.place(now, id, g)
	}
	return nil
}

// Advance gives GPUs to candidates. The grants are valid until the next Advance.
func (r *Ranker) Advance(now Time) []Grant {
	now = r.clock(now)
	r.grants = r.grants[:0]
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

	if r.spare != nil {
		r.startSteps(now)
	}
	return r.grants
}

// NextWake returns when Advance must be called at the latest; it may be early, never late.
func (r *Ranker) NextWake() Time {
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

// collect moves the GPUs that are free soon to the idle set.
func (r *Ranker) collect(now Time) {
	for {
		id, ok := r.busy.advance(r.gpus, r.soon(now))
		if !ok {
			return
		}
		if r.gpus[id].spare {
			r.endWait(id, &r.gpus[id])
		}
		r.place(now, id, &r.gpus[id])
	}
}

// stall takes a GPU out until a completion comes.
func (r *Ranker) stall(id GPUID) {
	r.gpus[id].state = stalled
	r.stats.Stalled++
}

// pickGPU takes the idle GPU of the lowest number, so that load gathers on few; with none idle
// the first that is free within lead.
func (r *Ranker) pickGPU(now Time, lead Duration) (GPUID, bool) {
	// An idle GPU needs no look at the agenda.
	if r.idle.n > 0 {
		return GPUID(r.idle.first()), true
	}
	for r.busy.least <= now.Add(lead) {
		id, at := r.busy.top(r.gpus)
		if at > now.Add(lead) {
			break
		}

		// A GPU with too many batches unreported may hang: it must not swallow one more.
		if r.gpus[id].ahead < aheadMax {
			return id, true
		}
		r.stall(id)
	}
	return 0, false
}

func (r *Ranker) grant(m ModelID, id GPUID, how Grant) {
	g := &r.gpus[id]
	r.idle.clear(uint32(id))
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

// place puts a GPU where its state belongs after freeAt or its orders changed.
func (r *Ranker) place(now Time, id GPUID, g *gpu) {
	r.idle.clear(uint32(id))
	if g.spare {
		r.spare.unwatch(id)
	}

	// A hold moves the time when the GPU is free; the rest goes as for a busy one.
	if g.held {
		g.freeAt = max(g.freeAt, r.holds[id])
		if now >= r.holds[id] {
			r.release(g)
		}
	}

	soon := g.freeAt <= r.soon(now)
	switch {
	case soon && g.ahead >= aheadMax:
		r.stall(id)
	case soon:
		g.state = idle
		r.idle.set(uint32(id))
		if g.spare {
			r.spare.watch = append(r.spare.watch, id)
		}
	default:
		g.state = busy
		r.busy.set(r.gpus, id)
	}
}

// order returns the k-th oldest of a GPU's orders.
func (r *Ranker) order(id GPUID, k uint8) *order {
	if k == 0 {
		return &r.gpus[id].first
	}
	return &r.later[id][k-1]
}

func (r *Ranker) gpu(id GPUID) *gpu {
	if int(id) >= len(r.gpus) || r.gpus[id].state == absent {
		return nil
	}
	return &r.gpus[id]
}

func (r *Ranker) clock(now Time) Time {
	if now < r.now {
		r.stats.ClockBack++
		return r.now
	}
	r.now = now
	return now
}
