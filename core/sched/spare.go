package sched

import (
	"fmt"
	"slices"
)

// Spare work is work for GPUs with a length and without a deadline: training steps, loads, warm-ups, labels. A Ranker
// starts its steps on idle GPUs if they cannot delay any request: see spareRoom. A step is planned as busy time, so a
// batch may be granted after it; but it is not load, and no load signal counts it.

// WorkID numbers spare work within one Ranker. The driver chooses it.
type WorkID uint32

// SpareWork is spare work whose steps a Ranker may run on idle GPUs, one after the other and on several GPUs at once.
type SpareWork struct {
	ID     WorkID
	Step   Duration // a step's longest usual length on a GPU of the sub-cluster, at most SpareStepMost
	Weight float64  // its share of the GPU time relative to other work, above 0
	Owner  uint32   // only GPUs of this owner run its steps, see SetSpareOwner; 0: any GPU does
	Most   int      // largest number of its steps at a time; 0: unlimited
}

// SpareStep is the order to run one step on one GPU. Exactly one EndSpare must answer it.
type SpareStep struct {
	Work       WorkID
	SubCluster uint32
	GPU        GPUID
	Epoch      uint32 // the GPU's life
	Start      Time   // when the GPU is free
	End        Time   // Start + Step
}

// SpareStats are a Ranker's counters of spare work since its creation.
type SpareStats struct {
	Steps   uint64   // started
	Time    Duration // GPU time of the ended ones
	Overrun uint64   // ended later than planned
	Lost    uint64   // never reported as ended: their work is suspended
	Stale   uint64   // messages ignored
}

const (
	// SpareStepMost is the longest step: it bounds how long a request that arrives just after a step's start waits
	// for its GPU.
	SpareStepMost Duration = 10_000_000
	// spareStepTight is the longest step while GPU time is scarce.
	spareStepTight Duration = 2_000_000
	// SpareWorkMax is the largest number of spare works of a Ranker.
	SpareWorkMax = 64
)

// spare is a Ranker's state of spare work. A Ranker without spare work has none.
type spare struct {
	works  []offered
	steps  []running // by GPU
	owners []uint32  // by GPU, up to the last one with an owner
	wants  []want    // by model
	count  int       // running steps
	// followed is the number of running steps with a batch after them.
	followed int
	watch    []GPUID // GPUs whose step should have ended, but has not been reported
	out      []SpareStep
	turn     [spareSlots + 1]int32 // scratch of spareRoom
	stats    SpareStats
}

// offered is spare work with its usage.
type offered struct {
	SpareWork
	used      float64 // GPU time by weight
	running   int     // its running steps
	suspended bool    // a step of it was lost
}

// running is a GPU's step.
type running struct {
	work  WorkID
	step  Duration
	start Time
	end   Time // as planned
	late  bool // it has not ended as planned
}

// OfferSpare adds or changes spare work. Suspended work continues.
func (r *Ranker) OfferSpare(now Time, w SpareWork) error {
	r.clock(now)
	switch {
	case w.Step <= 0 || w.Step > SpareStepMost:
		return fmt.Errorf("sched: spare work %d: step = %d ns, want 1 to %d", w.ID, w.Step, SpareStepMost)
	case !(w.Weight > 0 && w.Weight <= 1e6):
		return fmt.Errorf("sched: spare work %d: weight = %v, want above 0 and at most 1e6", w.ID, w.Weight)
	}
	if r.spare == nil {
		r.spare = &spare{}
	}

	s, least := r.spare, 0.0

	// Known work keeps its usage: an offer that only changes its terms is not a new start.
	for i := range s.works {
		if s.works[i].ID == w.ID {
			s.works[i].SpareWork, s.works[i].suspended = w, false
			return nil
		}
		if i == 0 || s.works[i].used < least {
			least = s.works[i].used
		}
	}
	if len(s.works) == SpareWorkMax {
		return fmt.Errorf("sched: spare work %d: there are %d already, want at most as many", w.ID, SpareWorkMax)
	}

	// New work starts with the least usage of the others, so that it does not make up for the time before it came.
	// Steps that it started before it was withdrawn may still run.
	s.works = append(s.works, offered{SpareWork: w, used: least, running: r.stepsOf(w.ID)})
	return nil
}

// stepsOf returns the number of a work's running steps.
func (r *Ranker) stepsOf(id WorkID) (n int) {
	for g := range r.spare.steps {
		if r.gpus[g].spare && r.spare.steps[g].work == id {
			n++
		}
	}
	return n
}

// SetSpareOwner sets the owner whose steps a GPU runs, besides those of work without an owner. A GPU that was just
// added has no owner. Without spare work it does nothing.
func (r *Ranker) SetSpareOwner(id GPUID, owner uint32) {
	if r.spare == nil || r.gpu(id) == nil {
		return
	}
	for int(id) >= len(r.spare.owners) {
		r.spare.owners = append(r.spare.owners, 0)
	}
	r.spare.owners[id] = owner
}

// ownerOf returns a GPU's owner.
func (s *spare) ownerOf(id GPUID) uint32 {
	if int(id) >= len(s.owners) {
		return 0
	}
	return s.owners[id]
}

// WithdrawSpare removes spare work. EndSpare must still answer its running steps.
func (r *Ranker) WithdrawSpare(now Time, id WorkID) {
	r.clock(now)
	if r.spare == nil {
		return
	}
	for i, w := range r.spare.works {
		if w.ID == id {
			r.spare.works = append(r.spare.works[:i], r.spare.works[i+1:]...)
			return
		}
	}
}

// Forecast records when a model may want GPUs.
func (r *Ranker) Forecast(now Time, f Forecast) {
	r.clock(now)
	if r.spare == nil || f.Model >= IDLimit {
		return
	}
	s := r.spare
	for int(f.Model) >= len(s.wants) {
		s.wants = append(s.wants, want{due: Never})
	}
	if w := &s.wants[f.Model]; f.Seq > w.seq {
		*w = want{seq: f.Seq, due: f.Due, gap: f.Gap, window: f.Window, period: max(f.Period, spareGapLeast), notice: f.Notice, known: !f.Gone}
	}
}

// HasSpare reports whether spare work was ever offered. Earlier forecasts were ignored.
func (r *Ranker) HasSpare() bool { return r.spare != nil }

// WantsSpare reports whether there is spare work whose steps may run.
func (r *Ranker) WantsSpare() bool {
	return r.spare != nil && slices.ContainsFunc(r.spare.works, func(w offered) bool { return !w.suspended })
}

// ForgetForecasts forgets when models may want GPUs. It is for a driver that stopped forecasts and starts them again,
// because models may have been removed meanwhile.
func (r *Ranker) ForgetForecasts() {
	if r.spare != nil {
		clear(r.spare.wants)
		r.spare.wants = r.spare.wants[:0]
	}
}

// EndSpare answers a SpareStep: its GPU is free at freeAt, which moves the plan of later orders. A step that was not
// started, or has already ended, is an error and changes nothing.
func (r *Ranker) EndSpare(now Time, id GPUID, epoch uint32, freeAt Time) error {
	now = r.clock(now)
	g := r.gpu(id)
	if g == nil || g.epoch != epoch || !g.spare {
		if r.spare != nil {
			r.spare.stats.Stale++
		}
		return fmt.Errorf("sched: spare step on gpu %d: %w", id, ErrUnknown)
	}

	freeAt = max(0, freeAt)
	x := r.spare.steps[id]

	// An overrunning step has delayed the batch after it: the driver's Step is too short.
	if freeAt > x.end {
		r.spare.stats.Overrun++
	}
	r.forgetStep(id, g, freeAt.Sub(x.start))

	r.replanGPU(now, id, g, freeAt)
	return nil
}

// SpareSteps returns the steps that the latest Advance started, valid until the next.
func (r *Ranker) SpareSteps() []SpareStep {
	if r.spare == nil {
		return nil
	}
	return r.spare.out
}

// SpareStats returns the counters of spare work.
func (r *Ranker) SpareStats() SpareStats {
	if r.spare == nil {
		return SpareStats{}
	}
	return r.spare.stats
}

// forgetStep records that a GPU's step has ended, or is lost with the GPU.
func (r *Ranker) forgetStep(id GPUID, g *gpu, took Duration) {
	r.spare.unwatch(id)
	g.spare = false
	r.spare.count--
	if w := r.spare.work(r.spare.steps[id].work); w != nil {
		w.running--
	}
	if g.ahead > 0 {
		r.spare.followed--
	}
	r.spare.stats.Time += max(0, took)
}

// startSteps starts as many steps as requests leave room for, on the idle GPUs with the highest numbers, because load
// gathers on the others.
func (r *Ranker) startSteps(now Time) {
	s := r.spare
	s.out = s.out[:0]
	room, checked := 0, Duration(0) // how many steps of the checked length may start

	// When GPU time is scarce only short steps run: a request that finds a GPU taken waits for less time.
	longest := SpareStepMost
	if len(s.works) > 0 && r.load() >= tight {
		longest = spareStepTight
	}

	for id := r.idle.last(len(r.gpus)); id >= 0; id = r.idle.last(id) {
		g := &r.gpus[id]
		if g.spare || g.ahead > 0 {
			continue // its step ends soon, but has not ended
		}

		for {
			w := s.next(s.ownerOf(GPUID(id)), longest)
			if w == nil {
				break
			}

			// Compute the room once for each length: it is a pass over all models and GPUs.
			if w.Step != checked {
				room, checked = r.spareRoom(now, w.Step), w.Step
			}
			if room > 0 {
				room--
				r.startStep(now, GPUID(id), g, w)
				break
			}
			longest = w.Step - 1 // a shorter step may still fit
		}
		if longest == 0 {
			return
		}
	}
}

// next returns the work to run next on a GPU of an owner: among works with steps no longer than longest, the one with
// the least usage by its weight.
func (s *spare) next(owner uint32, longest Duration) *offered {
	var best *offered
	for i := range s.works {
		w := &s.works[i]
		mayRun := !w.suspended && w.Step <= longest && (w.Owner == 0 || w.Owner == owner) && (w.Most == 0 || w.running < w.Most)
		if mayRun && (best == nil || w.used < best.used) {
			best = w
		}
	}
	return best
}

// work returns the spare work with a number, or nil.
func (s *spare) work(id WorkID) *offered {
	for i := range s.works {
		if s.works[i].ID == id {
			return &s.works[i]
		}
	}
	return nil
}

func (r *Ranker) startStep(now Time, id GPUID, g *gpu, w *offered) {
	s := r.spare
	for int(id) >= len(s.steps) {
		s.steps = append(s.steps, running{})
	}

	start := max(r.earliestStart(now), g.freeAt)
	end := start.Add(w.Step)
	s.steps[id] = running{work: w.ID, step: w.Step, start: start, end: end}

	// Count the step now: if its end counted it, the work would get every other idle GPU meanwhile.
	w.used += float64(w.Step) / w.Weight
	w.running++
	s.count++
	s.stats.Steps++
	s.out = append(s.out, SpareStep{Work: w.ID, SubCluster: r.number, GPU: id, Epoch: g.epoch, Start: start, End: end})

	// Plan the step as busy time, so that a batch may be granted after it.
	g.spare, g.freeAt = true, end
	r.idle.clear(uint32(id))
	g.state = busy
	r.busy.set(r.gpus, id)
}

// watchSteps handles steps whose end should have been reported by now. Their GPUs count as busy for one more step; endWait
// then gives the step up.
func (r *Ranker) watchSteps(now Time) {
	s := r.spare
	for k := 0; k < len(s.watch); {
		id := s.watch[k]
		x, g := &s.steps[id], &r.gpus[id]
		if x.end.Add(r.lead(1)) > now {
			k++
			continue
		}
		s.watch[k] = s.watch[len(s.watch)-1]
		s.watch = s.watch[:len(s.watch)-1]

		// The set of busy GPUs triggers endWait when the extra time is over.
		x.late = true
		g.freeAt = r.earliestStart(now).Add(x.step)
		r.idle.clear(uint32(id))
		g.state = busy
		r.busy.set(r.gpus, id)
	}
}

// watchAt returns when the first report of a watched step is due.
func (r *Ranker) watchAt() Time {
	at := Never
	for _, id := range r.spare.watch {
		at = min(at, r.spare.steps[id].end.Add(r.lead(1)))
	}
	return at
}

// unwatch stops waiting for the report of a GPU's step.
func (s *spare) unwatch(id GPUID) {
	for k := range s.watch {
		if s.watch[k] == id {
			s.watch[k] = s.watch[len(s.watch)-1]
			s.watch = s.watch[:len(s.watch)-1]
			return
		}
	}
}

// endWait ends the extra time of a late step: the report of its end counts as lost. This does not count against the
// GPU.
func (r *Ranker) endWait(id GPUID, g *gpu) {
	if g.ahead == 0 && r.spare.steps[id].late {
		r.loseStep(id, g)
	}
}

// loseStep stops waiting for a step's end and suspends its work: the step hangs, or its driver does not report.
func (r *Ranker) loseStep(id GPUID, g *gpu) {
	r.forgetStep(id, g, 0)
	r.spare.stats.Lost++
	if w := r.spare.work(r.spare.steps[id].work); w != nil {
		w.suspended = true
	}
}

// Suspended reports whether spare work gets no steps until it is offered anew, because the end of a step was never
// reported.
func (r *Ranker) Suspended(id WorkID) bool {
	if r.spare == nil {
		return false
	}
	w := r.spare.work(id)
	return w != nil && w.suspended
}
