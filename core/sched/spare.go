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
	Pinned bool     // only GPU runs its steps, if its owner does not differ
	GPU    GPUID
}

// mayRunOn reports whether a GPU of an owner may run its steps.
func (w *SpareWork) mayRunOn(id GPUID, owner uint32) bool {
	return (w.Owner == 0 || w.Owner == owner) && (!w.Pinned || w.GPU == id)
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
	steps  []runningStep // by GPU
	owners []uint32      // by GPU, up to the last one with an owner
	wants  []want        // by model
	count  int           // running steps
	// followed is the number of running steps with a batch after them.
	followed int
	watch    []GPUID // GPUs whose step should have ended, but has not been reported
	out      []SpareStep
	balance  [spareSlots + 1]int32 // scratch of spareRoom
	stats    SpareStats
}

// offered is spare work with its usage.
type offered struct {
	SpareWork
	used      float64 // GPU time by weight
	running   int     // its running steps
	suspended bool    // a step of it was lost
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

// SpareStats returns the counters of spare work.
func (r *Ranker) SpareStats() SpareStats {
	if r.spare == nil {
		return SpareStats{}
	}
	return r.spare.stats
}
