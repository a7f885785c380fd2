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
	"downbeat.dev/backend/train"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/repo"
)

// Live is a learner beside the backend that serves its model. The backend's idle GPUs run its steps as spare work,
// and its publications become versions in the repository, which the backend loads (docs/decisions/0171).
type Live struct {
	name    string
	about   TrainableModel
	gpu     int // the backend's GPU that trains; −1: the processor does
	log     *slog.Logger
	work    *backend.SpareWork
	began   time.Time
	teacher *teacher // nil: only true classes label
	stop    chan struct{}
	ended   chan struct{}
	lock    *os.File // excludes other processes from learning the model

	told atomic.Pointer[standing]

	mu      sync.Mutex // held by a step and by what follows from it
	learner *Learner
	closed  bool
	failing bool          // the teacher's latest answer failed; guarded by mu
	longest time.Duration // of recent steps; guarded by mu
	rate    answerRate    // guarded by mu
	// compared are the latest comparisons with the first weights, guarded by mu. Readers hold the slice, so it is
	// replaced, never changed.
	compared []AccuracyAfter

	inbox     sync.Mutex
	truths    []Sample // labelled; guarded by inbox
	unlabeled []Sample // without a class; guarded by inbox
}

const (
	liveTick  = 100 * time.Millisecond
	inboxMost = 4096
	// comparedEvery is the interval between comparisons with the first weights; comparedKept is the number that is
	// published.
	comparedEvery = time.Second
	comparedKept  = 240
	closeMost     = 5 * time.Second // how long Close waits for a hung step
	// stepRoom is the announced length of a step relative to the longest recent one: steps announce a high
	// percentile.
	stepRoom = 1.25
	// stepPart is the length that is asked for when training steps can stop: at every load it uses more of the idle
	// time than longer steps do (downbeat bench spare).
	stepPart = 2 * time.Millisecond
)

// StartLive trains a model that its repository declares trainable. It returns nil without an error if the model is
// not declared so, or if another process learns it. Close it before the backend is stopped.
func StartLive(b *backend.Backend, repository, name, library string, log *slog.Logger) (*Live, error) {
	dir := filepath.Join(repository, name)
	about, initial, declared, err := ReadTraining(dir)
	if err != nil || !declared {
		return nil, err
	}
	s := &Live{name: name, about: about, log: log.With("model", name), began: time.Now(), stop: make(chan struct{}), ended: make(chan struct{})}

	// Only one process may learn a model: two would publish versions under the same numbers.
	if s.lock, err = lockModel(dir); err != nil || s.lock == nil {
		s.log.Info("the model is learnt by another process", "err", err)
		return nil, err
	}

	if err := s.openLearner(b, repository, library, initial); err != nil {
		return nil, errors.Join(fmt.Errorf("model %s is not trained, it serves on: %w", name, err), s.teacher.close(), s.lock.Close())
	}

	s.noteStanding()
	ShareSpareTime(b)
	s.work = b.NewSpareWork("learn "+name, s.trainOnce)
	if s.gpu >= 0 {
		s.work.PinTo(s.gpu)
	}
	if s.teacher != nil {
		b.SampleInputs(name, scoresOutput, max(1, about.Every), s.takeInput)
	}
	s.rate.count = b.CountAnswers(name)
	b.Learns(name, s)
	go s.watchDrift()
	s.log.Info("the model is trained while it serves", "version", s.learner.Version(), "samples", len(initial), "teacher", about.Teacher)
	return s, nil
}

// ShareSpareTime lets the learners of a backend share its spare time by what it is worth to them.
func ShareSpareTime(b *backend.Backend) { b.WeighSpareWork(plan.WeighTraining) }

// openLearner creates the learner of the newest version.
func (s *Live) openLearner(b *backend.Backend, repository, library string, initial []Sample) error {
	net, err := s.about.Net(s.name)
	if err != nil {
		return fmt.Errorf("%s: %w", trainingFile, err)
	}

	// Versions must contain the exits' heads, else the exits would stop working.
	exits, err := repo.ExitsOf(repository, s.name)
	if err == nil && len(exits) > len(net.Exits) {
		err = fmt.Errorf("%s: exits: %d, and the repository has %v: want all, so that they learn, too", trainingFile, len(net.Exits), exits)
	}
	if err != nil {
		return err
	}

	// After a restart, continue from the newest version, which serves.
	store := OpenStore(repository, net)
	version, weights, err := store.Newest()
	if err != nil {
		return err
	}

	o := Options{Net: net, Weights: weights, Version: version, Initial: initial, Library: library, Seed: 1, Brief: true,
		Trainer: func(n train.Net, c train.Options) (t train.Stepper, err error) {
			t, s.gpu, err = b.NewTrainer(n, c)
			return t, err
		},
		Batch: s.about.Batch, Period: s.about.comparesEvery(), Rate: s.about.Rate, Mirror: s.about.Mirror, Every: s.about.Every, Publish: store.Publisher(b.LoadLearnt), Stored: store.Weights}
	if s.about.Teacher != "" {
		if s.teacher, err = openTeacher(repository, s.about.Teacher, library, net); err != nil {
			return err
		}
		o.Teach = s.teacher.label
	}

	s.learner, err = New(o, 0)
	return err
}

// takeInput keeps an input that the backend has answered. It is called between batches and does not wait.
func (s *Live) takeInput(a backend.Answered) {
	s.inbox.Lock()
	defer s.inbox.Unlock()
	if len(s.unlabeled) < waitMax {
		served, scores := s.about.served(a.Version, a.Output)
		s.unlabeled = append(s.unlabeled, Sample{Input: slices.Clone(a.Input), Served: served, scores: scores})
	}
}

// Teach implements backend.Learner.
func (s *Live) Teach(version string, packed []byte) error {
	// Copy: the samples point into the bytes, which belong to the caller after the return.
	list, err := s.about.unpackLesson(version, slices.Clone(packed))
	if err != nil {
		return fmt.Errorf("samples of %s: %w", s.name, err)
	}

	// If there are too many, keep the latest: they say most about the present.
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

	// Withdraw the steps, so that the learner is free when the running step ends.
	s.work.Withdraw()
	if err := s.lockForCommand(); err != nil {
		return fmt.Errorf("roll back %s: %w", s.name, err)
	}
	defer s.mu.Unlock()

	// Publishing the old weights takes as long as any publication; the caller waits.
	err = s.learner.Rollback(n)
	s.noteStanding()
	s.log.Info("rolled back", "to", n, "version", s.learner.Version(), "err", err)
	s.offerSteps()
	return err
}

// lockForCommand locks mu for a command, unless the learner ends first: a step that hangs holds mu for good, and the backend's
// end waits for commands.
func (s *Live) lockForCommand() error {
	for !s.mu.TryLock() {
		select {
		case <-s.stop:
			return errEnded
		case <-time.After(time.Millisecond):
		}
	}

	if s.closed {
		s.mu.Unlock()
		return errEnded
	}
	return nil
}

var errEnded = errors.New("the learner has ended")

// Standing returns the learner's state as of a moment ago, without waiting for a step.
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

// Name returns the model's name.
func (s *Live) Name() string { return s.name }

// standing is a learner's published state.
type standing struct {
	version  int
	exitGaps []float64
	counts   Counts
	all      Standing
	compared []AccuracyAfter // immutable
}

// Version returns the number of the serving weights and the counts, as of a moment ago.
func (s *Live) Version() (version int, counts Counts) {
	told := s.told.Load()
	return told.version, told.counts
}

// noteStanding stores the learner's state. The caller holds mu.
func (s *Live) noteStanding() {
	s.told.Store(&standing{s.learner.Version(), s.learner.ExitGaps(), s.learner.Counts(), s.learner.standing(), s.compared})
}

// Close ends the learner; published weights stay. A hung step delays it by closeMost at most.
func (s *Live) Close() error {
	s.work.Withdraw()
	close(s.stop)

	// A step on a hung GPU may hold mu for good, so wait at most closeMost.
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
