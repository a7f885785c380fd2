package learn

import "math/rand/v2"

// How many samples of each sort are kept.
const (
	recentMax = 2048 // to train on, of the present
	oldMax    = 2048 // to train on, of all that was before
	judgeMax  = 768  // held out to judge weights
	driftMax  = 256  // held out to detect drift; plan.Drift compares no more
	waitMax   = 256  // inputs that wait for a label
)

// ring keeps the latest samples.
type ring struct {
	samples []Sample
	next    int // the oldest, once full
	most    int
}

// push adds s and returns what had to go.
func (r *ring) push(s Sample) (gone Sample, full bool) {
	if len(r.samples) < r.most {
		r.samples = append(r.samples, s)
		return Sample{}, false
	}
	gone = r.samples[r.next]
	r.samples[r.next] = s
	r.next = (r.next + 1) % r.most
	return gone, true
}

// takeAllBut removes all samples but the latest n, and returns them, oldest first.
func (r *ring) takeAllBut(n int) []Sample {
	// A full ring begins at next.
	ordered := append(append([]Sample(nil), r.samples[r.next:]...), r.samples[:r.next]...)
	cut := max(0, len(ordered)-n)
	r.samples, r.next = append([]Sample(nil), ordered[cut:]...), 0
	return ordered[:cut]
}

// reservoir keeps an even choice of all samples that it was ever given (Vitter's algorithm R).
type reservoir struct {
	samples []Sample
	seen    int
	most    int
}

func (r *reservoir) add(s Sample, rng *rand.Rand) {
	r.seen++
	if len(r.samples) < r.most {
		r.samples = append(r.samples, s)
		return
	}

	// Each of the samples seen is kept with the same probability, most/seen.
	if i := rng.IntN(r.seen); i < r.most {
		r.samples[i] = s
	}
}

// samples are what a learner knows of the world. Each labelled sample goes to one of three sets in turn: two are trained
// on, one judges weights, one detects drift.
type samples struct {
	rng    *rand.Rand
	turn   int
	recent ring
	old    reservoir

	judges    ring     // of the present
	judgesOld []Sample // of the first data; never changed

	reference []Sample // the drift set of the last drift, or of the first data
	filling   bool     // the reference is still too small
	window    []Sample // the drift set since the period's start
}

func newSamples(initial []Sample, seed uint64) *samples {
	s := &samples{rng: rand.New(rand.NewPCG(seed, 0x6c6561726e)), recent: ring{most: recentMax}, old: reservoir{most: oldMax}, judges: ring{most: judgeMax}}
	for i, one := range initial {
		// The initial samples are split as later ones are: a sample that was trained on judges nothing.
		switch i % 4 {
		case 2:
			if len(s.judgesOld) < judgeMax {
				s.judgesOld = append(s.judgesOld, one)
			}
		case 3:
			if len(s.reference) < driftMax {
				s.reference = append(s.reference, one)
			}
		default:
			s.old.add(one, s.rng)
		}
	}
	return s
}

// add takes a labelled sample of the present.
func (s *samples) add(one Sample) {
	turn := s.turn
	s.turn = (s.turn + 1) % 4
	switch turn {
	case 2:
		s.judges.push(one)
	case 3:
		if s.filling {
			s.reference = append(s.reference, one)
			s.filling = len(s.reference) < driftMax
		} else {
			s.window = append(s.window, one)
		}
	default:
		if gone, full := s.recent.push(one); full {
			s.old.add(gone, s.rng)
		}
	}
}

// noteDrift makes the drift window the new reference. What came before it is no longer the present: it is kept with the
// old samples, and judges no more.
func (s *samples) noteDrift() {
	// Of four turns one goes to the window, one to the judges and two to what is trained on.
	for _, one := range s.recent.takeAllBut(2 * len(s.window)) {
		s.old.add(one, s.rng)
	}
	s.judges.takeAllBut(len(s.window))

	s.reference, s.window = s.window, nil
	s.filling = len(s.reference) < driftMax
}

// drawBatch draws a training batch: a share of the present, the rest of what was before.
func (s *samples) drawBatch(n int, recent float64) []Sample {
	batch := make([]Sample, n)

	// Old samples are in every batch, so that the first data is not forgotten.
	now := int(recent*float64(n) + 0.5)
	for i := range batch {
		from := s.old.samples
		if i < now {
			from = s.recent.samples
		}
		batch[i] = from[s.rng.IntN(len(from))]
	}
	return batch
}
