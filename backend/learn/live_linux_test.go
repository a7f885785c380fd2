//go:build cgo && !race

package learn

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"downbeat.dev/backend/train"
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
