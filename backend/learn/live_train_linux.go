package learn

import (
	"slices"
	"time"

	"downbeat.dev/backend"
)

// takeSamples moves received samples to the learner. The caller holds mu.
func (s *Live) takeSamples() {
	s.inbox.Lock()
	truths, unlabeled := s.truths, s.unlabeled
	s.truths, s.unlabeled = nil, nil
	s.inbox.Unlock()

	// Sizes and classes were checked on arrival; inputs of another shape than the net's are left out.
	for _, one := range truths {
		_, _ = s.learner.OfferLabelled(one)
	}

	for _, one := range unlabeled {
		_, _ = s.learner.offerSampled(one)
	}
}

// trainOnce is the spare work: one brief step on an idle GPU.
func (s *Live) trainOnce(limit time.Duration) (after func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}

	// An error comes from the machine; invalid weights are no error.
	r, err := s.learner.StepWithin(limit)
	if err != nil {
		s.log.Error("the learner ends: its model serves on", "err", err)
		s.closed = true
		return s.work.Withdraw
	}

	// Replace the list of comparisons, since readers hold it.
	if c, ok := s.learner.takeCompared(); ok {
		next := AccuracyAfter{Version: c.Version, Samples: c.Samples, Serving: c.Serving, First: c.First, at: time.Since(s.began)}
		s.compared = append(slices.Clone(s.compared[max(0, len(s.compared)+1-comparedKept):]), next)
	}

	s.noteTeacher(r)

	// The estimate rises at once when steps take longer, and falls slowly. Two durations are ignored: that of a failed
	// step, and that of a step that can stop. The latter uses all the time that it gets, so the estimate would only rise.
	if r.Unlabelled == nil && !(r.Work == Training && s.learner.Counts().Stopped > 0) {
		s.longest = max(r.Took, s.longest-s.longest/64)
	}
	if r.Work == None || s.learner.Settling() || s.learner.LookReady() || s.learner.Idle() {
		return s.settleJudgement
	}

	return nil
}

// noteTeacher logs once that the teacher fails, and once that it answers again. The caller holds mu.
func (s *Live) noteTeacher(r Report) {
	switch {
	case r.Work != Labelling || (r.Unlabelled != nil) == s.failing:
		return
	case r.Unlabelled != nil:
		s.log.Error("the teacher fails and is asked again later: inputs without truth are dropped meanwhile", "err", r.Unlabelled)
	default:
		s.log.Info("the teacher answers again", "failed", s.learner.Counts().TeacherFailed)
	}
	s.failing = r.Unlabelled != nil
}

// watchDrift is the goroutine that looks for drift and offers steps when there is work.
func (s *Live) watchDrift() {
	defer close(s.ended)
	t := time.NewTicker(liveTick)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
		}

		// Take samples even without work: looks for drift need them.
		s.mu.Lock()
		s.takeSamples()
		s.noteStanding()
		s.rate.note(time.Since(s.began))
		s.learner.BeginLook(time.Since(s.began))
		s.beginComparison()
		due := !s.closed && (s.learner.LookReady() || s.learner.Settling())
		wake := !due && !s.closed && !s.learner.Idle()

		// Do here what needs no GPU; the scheduler orders the rest.
		if wake {
			s.offerSteps()
		}
		s.mu.Unlock()
		if due {
			s.settleJudgement()
		}
	}
}

// settleJudgement does what needs no GPU: it ends looks and judgements whose answers are complete, and publishes.
func (s *Live) settleJudgement() {
	s.work.Withdraw() // no step waits for the learner meanwhile
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}

	s.takeSamples()
	if s.learner.LookReady() {
		s.endLook()
	}

	if s.learner.Settling() {
		r, err := s.learner.Settle()
		switch {
		case err != nil:
			s.log.Error("candidate not judged", "err", err)
		case r.Published:
			s.log.Info("better weights published", "version", s.learner.Version(), "rightly", r.Candidate, "before", r.Serving)
		case r.Discarded != nil:
			s.log.Warn("candidate discarded", "err", r.Discarded)
		}
	}

	s.noteStanding()
	s.offerSteps()
}

// endLook compares the present with the reference. The caller holds mu.
func (s *Live) endLook() {
	report, inputs, err := s.learner.Look(time.Since(s.began))
	if err != nil {
		s.log.Error("drift is not looked for", "err", err)
	}

	if inputs > 0 && report.Drifted {
		s.log.Info("what the model is asked has drifted", "impact", report.Impact, "p", min(report.FeatureP, report.AnswerP))
	}
}

// beginComparison begins a comparison with the first weights, once a second. The caller holds mu.
func (s *Live) beginComparison() {
	n := len(s.compared)
	if !s.closed && (n == 0 || time.Since(s.began) >= s.compared[n-1].at+comparedEvery) {
		s.learner.BeginComparison()
	}
}

// offerSteps offers steps while there is work. The caller holds mu.
func (s *Live) offerSteps() {
	if s.closed || s.learner.Idle() {
		s.work.Withdraw()
		return
	}

	s.work.Offer(s.stepLength(), s.learner.Worth(s.rate.perSecond))
}

// stepLength is the length to ask for. If it is too short, batches wait behind the step; if it is too long, fewer idle
// gaps fit. The caller holds mu.
func (s *Live) stepLength() time.Duration {
	least := time.Millisecond
	if s.learner.Counts().Stopped > 0 {
		least = stepPart
	}
	return min(max(time.Duration(stepRoom*float64(s.longest)), least), backend.SpareStepMost)
}
