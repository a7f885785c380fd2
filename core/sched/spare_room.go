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
	// spareSlots is into how many parts the time of a step is divided to compare what is wanted with what is free.
	spareSlots = 16
	// spareGapLeast keeps a model from wanting GPUs faster than that.
	spareGapLeast Duration = 100_000
	// spareMany is from how many GPUs on a batch that waits behind a step costs those behind it nothing to speak of.
	spareMany = 8
)

// spareRoom returns how many steps of a length may start now. A step must keep no batch beyond its latest start. So
// whenever one is due during the step, as many GPUs must be idle or have become free as batches that are due during it
// may have taken until then: of the known candidates, should a burst join each, and of requests still to come. What is
// due after the step's end finds its GPU free again; of few GPUs what may begin before the step's end counts as well, see
// sooner. No step is longer than the time that requests still to come leave.
// It takes time in proportion to the models and GPUs.
func (r *Ranker) spareRoom(now Time, step Duration) int {
	s := r.spare
	balance := &s.turn
	*balance = [spareSlots + 1]int32{}

	width, sooner := step/spareSlots+1, r.sooner()
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
			at = max(0, w.due.Sub(now)-Duration(sooner*float64(w.window)))
		}

		// Each batch may take its GPU a window before it is due.
		for ; at < step; at += w.period {
			due[at/width] = true
			balance[max(0, at-w.window)/width]--
		}
	}

	// A GPU that becomes free within a part of the time counts from the next one on.
	for i := range r.gpus {
		if g := &r.gpus[i]; g.state == busy {
			if d := g.freeAt.Sub(r.soon(now)); d < step {
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

// sooner is by what share of its window a batch counts as due before it is. Behind a step a batch begins at its latest
// start, where an idle GPU would have begun it earlier: what it ends later is the next one's, until nothing waits. On a
// lone GPU somebody pays for that as soon as its time gets short; many GPUs share it.
func (r *Ranker) sooner() float64 {
	return max(0, float64(spareMany-r.count)/(spareMany-1))
}

// taken notes that a model gets a GPU. What it leaves may want one at once, until its next forecast says otherwise.
func (s *spare) taken(m ModelID, id GPUID) {
	s.unwatch(id)
	if int(m) < len(s.wants) {
		s.wants[m].due = 0
	}
}
