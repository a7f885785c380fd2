package learn

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/core/repo"
)

// Live is a learner beside the backend that serves its model: the backend's idle GPUs run its steps as spare work, and
// what it publishes becomes a version of the repository that the backend loads (docs/decisions/0171).
type Live struct {
	name    string
	about   TrainableModel
	log     *slog.Logger
	work    *backend.SpareWork
	began   time.Time
	teacher *teacher // nil: truth alone labels
	stop    chan struct{}
	ended   chan struct{}
	lock    *os.File // that no other process learns the model

	told atomic.Pointer[standing]

	mu      sync.Mutex // a step, or what follows from it, has the learner
	learner *Learner
	closed  bool
	failing bool          // the teacher did not answer last; guarded by mu
	longest time.Duration // of late steps; guarded by mu
	// compared are the latest comparisons with the first weights, guarded by mu; readers have it, so that it is replaced as a whole.
	compared []AccuracyAfter

	inbox     sync.Mutex
	truths    []Sample // labelled; guarded by inbox
	unlabeled [][]byte // guarded by inbox
}

const (
	liveTick  = 100 * time.Millisecond
	inboxMost = 4096
	// comparedEvery is the time between two comparisons with the first weights, and comparedKept how many are told.
	comparedEvery = time.Second
	comparedKept  = 240
	closeMost     = 5 * time.Second // that Close waits for a step which hangs
	// stepRoom is by how much longer a step may take than the longest of late: what it says is a high percentile.
	stepRoom = 1.25
)

// StartLive trains a model that its repository declares trainable. It returns nil without an error where it does not, or
// where another process learns the model. Close ends it, before the backend is stopped.
func StartLive(b *backend.Backend, repository, name, library string, log *slog.Logger) (*Live, error) {
	dir := filepath.Join(repository, name)
	about, initial, declared, err := ReadTraining(dir)
	if err != nil || !declared {
		return nil, err
	}
	s := &Live{name: name, about: about, log: log.With("model", name), began: time.Now(), stop: make(chan struct{}), ended: make(chan struct{})}

	// One process learns a model: two would publish versions under the same numbers.
	if s.lock, err = lockModel(dir); err != nil || s.lock == nil {
		s.log.Info("the model is learnt by another process", "err", err)
		return nil, err
	}

	if err := s.openLearner(b, repository, library, initial); err != nil {
		return nil, errors.Join(fmt.Errorf("model %s is not trained, it serves on: %w", name, err), s.teacher.close(), s.lock.Close())
	}

	s.noteStanding()
	s.work = b.NewSpareWork("learn "+name, s.trainOnce)
	if s.teacher != nil {
		b.SampleInputs(name, max(1, about.Every), s.takeInput)
	}
	b.Learns(name, s)
	go s.watchDrift()
	s.log.Info("the model is trained while it serves", "version", s.learner.Version(), "samples", len(initial), "teacher", about.Teacher)
	return s, nil
}

// openLearner makes the learner of the newest version.
func (s *Live) openLearner(b *backend.Backend, repository, library string, initial []Sample) error {
	net, err := s.about.Net(s.name)
	if err != nil {
		return fmt.Errorf("%s: %w", trainingFile, err)
	}

	// A version without the exits' heads would stop them.
	exits, err := repo.ExitsOf(repository, s.name)
	if err == nil && len(exits) > len(net.Exits) {
		err = fmt.Errorf("%s: exits: %d, and the repository has %v: want all, so that they learn, too", trainingFile, len(net.Exits), exits)
	}
	if err != nil {
		return err
	}

	// What learns goes on from what serves after a restart: the newest version.
	store := OpenStore(repository, net)
	version, weights, err := store.Newest()
	if err != nil {
		return err
	}

	o := Options{Net: net, Weights: weights, Version: version, Initial: initial, Library: library, Seed: 1, Brief: true,
		Batch: s.about.Batch, Period: s.about.comparesEvery(), Rate: s.about.Rate, Every: s.about.Every, Publish: store.Publisher(b.LoadLearnt)}
	if s.about.Teacher != "" {
		if s.teacher, err = openTeacher(repository, s.about.Teacher, library, net); err != nil {
			return err
		}
		o.Teach = s.teacher.label
	}

	s.learner, err = New(o, 0)
	return err
}

// takeInput keeps an input that the backend has read. It is called between batches and does not wait.
func (s *Live) takeInput(input []byte) {
	s.inbox.Lock()
	defer s.inbox.Unlock()
	if len(s.unlabeled) < waitMax {
		s.unlabeled = append(s.unlabeled, append([]byte(nil), input...))
	}
}

// Teach implements backend.Learner.
func (s *Live) Teach(packed []byte) error {
	// The samples point into the bytes, which are the caller's only until this returns: they are copied.
	list, err := s.about.unpackSamples(append([]byte(nil), packed...))
	if err != nil {
		return fmt.Errorf("samples of %s: %w", s.name, err)
	}

	// Of more than fit the latest say most of the present.
	s.inbox.Lock()
	defer s.inbox.Unlock()
	s.truths = append(s.truths, list...)
	s.truths = s.truths[max(0, len(s.truths)-inboxMost):]
	return nil
}

// RollBack implements backend.Learner.
func (s *Live) RollBack(version string) error {
	n, err := strconv.Atoi(version)
	if err != nil {
		return fmt.Errorf("roll back %s: version %.40q: want a number", s.name, version)
	}

	// Without steps the learner is free as soon as the one that runs has ended.
	s.work.Withdraw()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("roll back %s: the learner has ended", s.name)
	}

	// The publication of the old weights takes as long as any other; the caller waits for it.
	err = s.learner.Rollback(n)
	s.noteStanding()
	s.log.Info("rolled back", "to", n, "version", s.learner.Version(), "err", err)
	s.offerSteps()
	return err
}

// Standing tells how the learner stood a moment ago; it waits for no step.
func (s *Live) Standing() Standing {
	told := s.told.Load()
	x := told.all
	x.Model, x.Accuracy = s.name, make([]AccuracyAfter, len(told.compared))
	for i, c := range told.compared {
		c.Ago = (time.Since(s.began) - c.at).Seconds()
		x.Accuracy[i] = c
	}
	return x
}

// Name is the model's.
func (s *Live) Name() string { return s.name }

// standing is what is told of a learner.
type standing struct {
	version  int
	exitGaps []float64
	counts   Counts
	all      Standing
	compared []AccuracyAfter // immutable
}

// Version returns the number of the serving weights, and what was done so far, as of a moment ago.
func (s *Live) Version() (version int, counts Counts) {
	told := s.told.Load()
	return told.version, told.counts
}

// noteStanding notes how the learner stands. mu is held.
func (s *Live) noteStanding() {
	s.told.Store(&standing{s.learner.Version(), s.learner.ExitGaps(), s.learner.Counts(), s.learner.standing(), s.compared})
}

// takeSamples moves what came in to the learner. mu is held.
func (s *Live) takeSamples() {
	s.inbox.Lock()
	truths, unlabeled := s.truths, s.unlabeled
	s.truths, s.unlabeled = nil, nil
	s.inbox.Unlock()

	// Sizes and classes were checked when they came; an input of another shape than the net's is left out.
	for _, one := range truths {
		_, _ = s.learner.OfferLabelled(one)
	}

	for _, input := range unlabeled {
		_, _ = s.learner.offerSampled(input)
	}
}

// trainOnce is the spare work: one brief step on an idle GPU.
func (s *Live) trainOnce(time.Duration) (after func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}

	// An error is the machine's: what is wrong with weights is no error.
	r, err := s.learner.Step()
	if err != nil {
		s.log.Error("the learner ends: its model serves on", "err", err)
		s.closed = true
		return s.work.Withdraw
	}

	// Readers hold the list of comparisons, so a new one takes its place.
	if c, ok := s.learner.takeCompared(); ok {
		next := AccuracyAfter{Version: c.Version, Samples: c.Samples, Serving: c.Serving, First: c.First, at: time.Since(s.began)}
		s.compared = append(slices.Clone(s.compared[max(0, len(s.compared)+1-comparedKept):]), next)
	}

	s.noteTeacher(r)

	// The estimate follows at once when steps take longer, and slowly when they take less; how long a failure takes says nothing.
	if r.Unlabelled == nil {
		s.longest = max(r.Took, s.longest-s.longest/64)
	}
	if r.Work == None || s.learner.Settling() || s.learner.LookReady() || s.learner.Idle() {
		return s.settleJudgement
	}

	return nil
}

// noteTeacher says once that the teacher fails, and once that it answers again. mu is held.
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

// watchDrift is the goroutine that looks for drift, and wakes the work when there is something to do.
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

		// Samples come in whether or not there is something to do: looks at drift need them.
		s.mu.Lock()
		s.takeSamples()
		s.noteStanding()
		s.learner.BeginLook(time.Since(s.began))
		s.beginComparison()
		due := !s.closed && (s.learner.LookReady() || s.learner.Settling())
		wake := !due && !s.closed && !s.learner.Idle()

		// What takes no GPU is done here; all else by the scheduler's orders.
		if wake {
			s.offerSteps()
		}
		s.mu.Unlock()
		if due {
			s.settleJudgement()
		}
	}
}

// settleJudgement does what takes no GPU: by answers that steps have given it ends looks and judgements, and publishes.
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

// endLook compares the present with what was before. mu is held.
func (s *Live) endLook() {
	report, inputs, err := s.learner.Look(time.Since(s.began))
	if err != nil {
		s.log.Error("drift is not looked for", "err", err)
	}

	if inputs > 0 && report.Drifted {
		s.log.Info("what the model is asked has drifted", "impact", report.Impact, "p", min(report.FeatureP, report.AnswerP))
	}
}

// beginComparison has steps compare the first weights with those that serve, once a second. mu is held.
func (s *Live) beginComparison() {
	n := len(s.compared)
	if !s.closed && (n == 0 || time.Since(s.began) >= s.compared[n-1].at+comparedEvery) {
		s.learner.BeginComparison()
	}
}

// offerSteps asks for steps while there is something to do. mu is held.
func (s *Live) offerSteps() {
	if s.closed || s.learner.Idle() {
		s.work.Withdraw()
		return
	}

	// A length that is too short has batches wait behind it, one that is too long finds less room.
	step := min(max(time.Duration(stepRoom*float64(s.longest)), time.Millisecond), backend.SpareStepMost)
	s.work.Offer(step, 1)
}

// Close ends the learner; weights that were published stay. A step that hangs keeps it no longer than a few seconds.
func (s *Live) Close() error {
	s.work.Withdraw()
	close(s.stop)

	// A step on a GPU that hangs may hold the learner for good, so it is waited for a few seconds.
	for until := time.Now().Add(closeMost); !s.mu.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			return fmt.Errorf("learner of %s: a step does not end", s.name)
		}
	}

	s.closed = true
	s.mu.Unlock()
	<-s.ended

	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.learner.Close(), s.teacher.close(), s.lock.Close())
}
