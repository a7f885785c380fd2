//go:build cgo && !race

package learn

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/train"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
)

// TestALearnerThatDiesInAStepServesOn: a training step that fails, for example because memory runs out, ends only the
// learner. Its weights still serve, no step follows, and the reason is logged once.
func TestALearnerThatDiesInAStepServesOn(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	s.offer(l, 100)
	l.learning = true
	serving := slices.Clone(l.Weights())

	// A trainer of another batch size refuses this learner's batches.
	broken, err := train.New(s.recipe.Net(), train.Options{Batch: l.options.Batch / 2, Weights: serving})
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	whole := l.trainer
	l.trainer = broken
	defer func() { l.trainer = whole }()

	var log bytes.Buffer
	live := &Live{learner: l, log: slog.New(slog.NewTextHandler(&log, nil))}
	if withdraw := live.trainOnce(0); withdraw == nil || !live.closed {
		t.Error("the learner goes on after a step that failed: its work is to be withdrawn")
	}
	if live.trainOnce(0) != nil || l.Counts().Steps != 0 {
		t.Errorf("steps after the end: %+v", l.Counts())
	}
	if !slices.Equal(serving, l.Weights()) || l.Version() != 1 {
		t.Errorf("version %d, whose weights are not those that served", l.Version())
	}
	if n := strings.Count(log.String(), "the learner ends: its model serves on"); n != 1 || !strings.Contains(log.String(), "want") {
		t.Errorf("said %d times:\n%s", n, log.String())
	}
}

// TestAStepThatStopsAsksForNoMore: a training step that stops when its time is over fills any length. The length that a
// learner asks for stays the one that fits into most gaps.
func TestAStepThatStopsAsksForNoMore(t *testing.T) {
	s := openStreet(t)
	d, err := cuda.OpenEmulated(cuda.Emulation{Kernels: kernels.Reference(), KernelTime: func(cuda.Launch) time.Duration { return 200 * time.Microsecond }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	l := s.learner(func(o *Options) {
		o.Batch = 4
		o.Trainer = func(n train.Net, c train.Options) (train.Stepper, error) { return layered.NewTrainer(d, n, c) }
	})
	s.offer(l, 100)
	l.learning = true

	live := &Live{learner: l, log: slog.New(slog.DiscardHandler)}
	if got := live.stepLength(); got != time.Millisecond {
		t.Errorf("before the first step: %v, want 1 ms", got)
	}
	for l.Counts().Steps < 3 {
		live.trainOnce(live.stepLength())
		if got := live.stepLength(); got != stepPart {
			t.Fatalf("after %+v: %v, want %v", l.Counts(), got, stepPart)
		}
	}
	if stops := l.Counts().Stopped; stops < 10 {
		t.Errorf("stopped %d times", stops)
	}
}

// TestARollbackDoesNotOutliveItsLearner: a rollback waits for a step that hangs. When the learner is closed it ends, because
// the backend's end waits for the commands under way.
func TestARollbackDoesNotOutliveItsLearner(t *testing.T) {
	live := &Live{name: "m", stop: make(chan struct{}), log: slog.New(slog.DiscardHandler)}
	live.mu.Lock() // by the step
	ended := make(chan error, 1)
	go func() { ended <- live.lockForCommand() }()
	select {
	case err := <-ended:
		t.Fatalf("the rollback did not wait for the step: %v", err)
	case <-time.After(20 * time.Millisecond):
	}

	close(live.stop)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the rollback goes on beside the step")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the rollback waits for good")
	}
}
