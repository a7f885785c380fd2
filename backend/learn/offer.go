package learn

import "slices"

// Offer passes an answered input. It keeps one in Options.Every, to be labelled by Step, and reports whether it kept
// this one. It copies the input.
func (l *Learner) Offer(input []byte) (kept bool, err error) {
	if err := l.options.checkSample(Sample{Input: input}); err != nil {
		return false, err
	}

	// Labels cost GPU time, so label only one input in Every.
	if l.offered++; l.offered%l.options.Every != 0 {
		return false, nil
	}
	return l.offerSampled(Sample{Input: input})
}

// offerSampled is Offer for an input that has already been chosen as one in Options.Every.
func (l *Learner) offerSampled(s Sample) (kept bool, err error) {
	if err := l.options.checkSample(s); err != nil || l.options.Teach == nil {
		return false, err
	}

	// Drop the oldest input: its label would say least about the present.
	if len(l.waiting) == waitMax {
		l.waiting = l.waiting[1:]
		l.counts.Dropped++
	}
	s.Input = slices.Clone(s.Input)
	l.waiting = append(l.waiting, s)
	l.counts.Sampled++
	return true, nil
}

// OfferLabelled is Offer for an input whose class is known. It copies the input.
func (l *Learner) OfferLabelled(s Sample) (kept bool, err error) {
	if err := l.options.checkSample(s); err != nil {
		return false, err
	}

	if l.offered++; l.offered%l.options.Every != 0 {
		return false, nil
	}
	s.Input = slices.Clone(s.Input)
	l.counts.Sampled++
	l.addLabelled(s)
	return true, nil
}

// addLabelled adds a sample to the present.
func (l *Learner) addLabelled(s Sample) {
	l.samples.add(s)
	l.counts.Labelled++
	if s.Served.Version == l.Version() {
		l.counts.Served++
	}
}
