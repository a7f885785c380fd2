package learn

import "math/rand/v2"

// Limits on the numbers of kept samples.
const (
	recentMax   = 2048 // of the present, for training
	oldMax      = 4096 // of all earlier data, for training
	freshMax    = 512  // of the present, not yet used to judge a candidate
	judgeOldMax = 384  // held out of the first data, to judge forgetting
	driftMax    = 256  // held out to detect drift, of the reference; plan.Drift compares no more
	windowMax   = 512  // of a period, whose answers are compared with the reference's
	lookedMost  = 128  // of them, whose features are compared too
	waitMax     = 256  // inputs that wait for a label
)

// ring keeps the latest samples.
type ring struct {
	samples []Sample
	next    int // index of the oldest, once full
	most    int
}

// push adds s and returns the sample that it replaced.
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

// takeAll removes all samples and returns them, oldest first.
func (r *ring) takeAll() []Sample {
	// A full ring begins at next.
	ordered := append(append([]Sample(nil), r.samples[r.next:]...), r.samples[:r.next]...)
	r.samples, r.next = nil, 0
	return ordered
}

// reservoir keeps a uniform random choice of all samples added to it (Vitter's algorithm R).
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

	// Keep each sample seen with the same probability, most/seen.
	if i := rng.IntN(r.seen); i < r.most {
		r.samples[i] = s
	}
}

// samples are a learner's samples. One labelled sample in four serves to detect drift until its period ends, or another
// reference replaces its own. The others are fresh until a candidate has been judged on them. All are trained on
// afterwards. So each of them judges weights that have not seen it (progressive validation; Blum, Kalai and Langford
// 1999), and none has to be held back for that.
type samples struct {
	rng    *rand.Rand
	turn   int
	fresh  []Sample // of the present, the oldest first
	recent ring     // of the present, judged
	old    reservoir

	judgesOld []Sample // of the first data; never changed

	reference []Sample // the drift samples of the last drift, or of the first data
	filling   bool     // the reference is still too small
	window    []Sample // the latest drift samples since the period's start
	windowAt  int      // drift samples of the period before them
	unwatched []Sample // those of the window whose answers the alarm has not noted, the oldest first

	latest []Sample // since the previous comparison with the first weights
}

func newSamples(initial []Sample, seed uint64) *samples {
	s := &samples{rng: rand.New(rand.NewPCG(seed, 0x6c6561726e)), recent: ring{most: recentMax}, old: reservoir{most: oldMax}}
	for i, one := range initial {
		// Samples of the first data that were trained on must not judge, so none is fresh.
		switch i % 4 {
		case 2:
			if len(s.judgesOld) < judgeOldMax {
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

// add adds a labelled sample of the present.
func (s *samples) add(one Sample) {
	s.latest = append(s.latest[max(0, len(s.latest)+1-comparedMost):], one)
	s.turn = (s.turn + 1) % 4
	switch {
	case s.turn != 0:
		s.fresh = append(s.fresh, one)
		if len(s.fresh) > freshMax {
			s.use(1)
		}
	case s.filling:
		s.reference = append(s.reference, one)
		s.filling = len(s.reference) < driftMax
	default:
		s.addToWindow(one)
	}
}

// addToWindow adds a drift sample. The oldest one of a full window is trained on from now on.
func (s *samples) addToWindow(one Sample) {
	s.unwatched = append(s.unwatched[max(0, len(s.unwatched)+1-windowMax):], one)

	if s.window = append(s.window, one); len(s.window) > windowMax {
		s.addToTraining(s.window[:1])
		s.window = s.window[1:]
		s.windowAt++
	}
}

// use moves the oldest n fresh samples to the training samples.
func (s *samples) use(n int) {
	s.addToTraining(s.fresh[:n])
	s.fresh = s.fresh[n:]
}

// addToTraining makes samples of the present training samples: they judge nothing and detect nothing from now on.
func (s *samples) addToTraining(list []Sample) {
	for _, one := range list {
		if gone, full := s.recent.push(one); full {
			s.old.add(gone, s.rng)
		}
	}
}

// endPeriod makes the period's drift samples training samples, and begins an empty window.
func (s *samples) endPeriod() {
	s.addToTraining(s.window)
	s.clearWindow()
	s.filling = false
}

// noteDrift makes the drift window the new reference. Earlier samples are no longer the present and move to the old
// samples.
func (s *samples) noteDrift() {
	for _, one := range s.recent.takeAll() {
		s.old.add(one, s.rng)
	}

	// Of four samples one goes to the window and three are fresh, so three fresh samples per window sample are of the
	// present. Half of them are trained on at once; the other half judges the result.
	for stale := len(s.fresh) - 3*len(s.window); stale > 0; stale-- {
		s.old.add(s.fresh[0], s.rng)
		s.fresh = s.fresh[1:]
	}
	s.use(len(s.fresh) / 2)

	// Nothing is compared with the former reference any more.
	for _, one := range s.reference {
		s.old.add(one, s.rng)
	}
	s.reference, s.unwatched = s.window, nil
	s.clearWindow()
	s.filling = len(s.reference) < driftMax
}

func (s *samples) clearWindow() { s.window, s.windowAt = nil, 0 }

// windowSpread returns the indices of the window's samples whose features are compared.
func (s *samples) windowSpread() []int { return chooseEvenly(len(s.window), s.windowAt, lookedMost) }

// chooseEvenly returns at most most of the indices of n samples, evenly spaced. The first of them has the number at; as the
// samples become more, those chosen are among those chosen before, whose answers are known, and new ones.
func chooseEvenly(n, at, most int) (chosen []int) {
	stride := 1
	for n > stride*most {
		stride *= 2
	}
	for i := range n {
		if (at+i)%stride == 0 {
			chosen = append(chosen, i)
		}
	}
	return chosen
}

func pick(list []Sample, chosen []int) (picked []Sample) {
	for _, i := range chosen {
		picked = append(picked, list[i])
	}
	return picked
}

// drawBatch draws a training batch: a share of recent samples, the rest old ones.
func (s *samples) drawBatch(n int, recent float64) []Sample {
	batch := make([]Sample, n)

	// Every batch has old samples, so that the first data is not forgotten.
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
