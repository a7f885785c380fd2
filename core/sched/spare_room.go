package sched

// want is when a model may want GPUs: see Forecast.
type want struct {
	seq    uint64
	due    Time
	gap    Duration
	window Duration
	period Duration
	notice Duration
	known  bool
}

const (
	// spareSlots is the number of parts into which a step's time is divided to compare demand with free GPUs.
	spareSlots = 16
	// spareGapLeast is the shortest interval at which a model may want GPUs.
	spareGapLeast Duration = 100_000
	// spareMany is the number of GPUs from which a batch that waits for a step hardly delays later batches.
	spareMany = 8
)

// spareRoom returns how many steps of a length may start now. A step must delay no batch beyond its latest start. So
// whenever a batch is due during the step, the GPUs that are idle or have become free by then must be at least as
// many as the batches due during the step may have taken: those of the known candidates, if a burst joins each, and
// those of future requests. A batch that is due after the step's end finds its GPU free again. With few GPUs, a batch
// that may begin before the step's end also counts; see earlyShare. No step is longer than future requests allow. The
// time is proportional to the number of models and GPUs.
func (r *Ranker) spareRoom(now Time, step Duration) int {
	s := r.spare
	balance := &s.balance
	*balance = [spareSlots + 1]int32{}

	width, early := step/spareSlots+1, r.earlyShare()
	var due [spareSlots]bool
	for i := range s.wants {
		w := &s.wants[i]
		if !w.known {
			continue
		}

		// A pair of requests could find every GPU in a step and be too late after it.
		if w.notice < step {
			return 0
		}

		at := w.gap
		if w.due != Never {
			at = max(0, w.due.Sub(now)-Duration(early*float64(w.window)))
		}

		// Each batch may take its GPU a window before it is due.
		for ; at < step; at += w.period {
			due[at/width] = true
			balance[max(0, at-w.window)/width]--
		}
	}

	// A GPU that becomes free within a part of the time counts from the next part on.
	for i := range r.gpus {
		if g := &r.gpus[i]; g.state == busy {
			if d := g.freeAt.Sub(r.earliestStart(now)); d < step {
				balance[max(0, d)/width+1]++
			}
		}
	}

	room, sum := r.idle.n, int32(r.idle.n)
	for k := range due {
		if sum += balance[k]; due[k] {
			room = min(room, int(sum))
		}
	}
	return room
}

// earlyShare returns the share of its window by which a batch counts as due earlier. After a step a batch begins at its
// latest start, where an idle GPU would have begun it earlier; the delay passes to the next batch, until none waits.
// On a single GPU some request misses its deadline for it as soon as GPU time gets short; many GPUs share the delay.
func (r *Ranker) earlyShare() float64 {
	return max(0, float64(spareMany-r.count)/(spareMany-1))
}

// noteGrant records that a model gets a GPU. Its remaining requests may want one at once, until its next forecast.
func (s *spare) noteGrant(m ModelID, id GPUID) {
	s.unwatch(id)
	if int(m) < len(s.wants) {
		s.wants[m].due = 0
	}
}
