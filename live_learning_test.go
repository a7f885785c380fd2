//go:build linux && !race

package downbeat

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/learn"
	"downbeat.dev/backend/ort"
	"downbeat.dev/frontend"
	"downbeat.dev/models"
	"downbeat.dev/models/scene"
)

// Real training while it serves, which the race detector slows down until no step is in time.

// trainable is a repository whose vehicle-s is declared trainable, with samples of mixed conditions.
func trainable(t *testing.T) (dir string, recipe models.Recipe) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	dir = t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "vehicle-s"), os.DirFS("models/vehicle-s")); err != nil {
		t.Fatal(err)
	}
	recipe, _ = models.Find("vehicle-s")
	about, err := learn.DescribeNet(recipe.Net())
	if err != nil {
		t.Fatal(err)
	}
	about.Period, about.Batch = 2, 8
	var initial []learn.Sample
	for _, l := range drawLessons(t, recipe, 0, 300, nil) {
		initial = append(initial, learn.Sample{Input: l.Input, Class: int(l.Class)})
	}
	if err := learn.WriteTraining(filepath.Join(dir, "vehicle-s"), about, initial); err != nil {
		t.Fatal(err)
	}
	return dir, recipe
}

// drawLessons draws pictures with their truth; nil: under the mixed conditions of the model's training.
func drawLessons(t *testing.T, r models.Recipe, from, n int, c *scene.Conditions) (list []frontend.LabelledSample) {
	h, w := r.Size()
	paint := models.NewPainter()
	for i := range n {
		pixels := make([]byte, h*w*3)
		truth, err := r.Draw(paint, 31, uint64(from+i), c, pixels)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, frontend.LabelledSample{Input: pixels, Class: uint32(truth.Class)})
	}
	return list
}

// learning starts a system on a repository.
func learning(t *testing.T, dir string) *System {
	c := Default()
	c.Models, c.HTTP, c.GRPC, c.Executors, c.Roles = dir, "127.0.0.1:0", "127.0.0.1:0", 2, Scheduler|Backend|Gateway
	c.GPU = os.Getenv("DOWNBEAT_REQUIRE_GPU") == "1" // then its GPU also trains

	// A GPU may be split into lanes, of which the last one trains.
	if lanes := os.Getenv("DOWNBEAT_LANES"); lanes != "" {
		var err error
		if c.Lanes, err = strconv.Atoi(lanes); err != nil {
			t.Fatal(err)
		}
	}
	return start(t, c)
}

// awaitVersion waits until a version at least that new serves, while do is done again and again.
func awaitVersion(t *testing.T, s *System, least int, do func()) (version int) {
	t.Helper()
	for until := time.Now().Add(4 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		for _, m := range s.Client().Models() {
			if v, err := strconv.Atoi(m.Version); err == nil && m.Name == "vehicle-s" && m.Ready && v >= least {
				return v
			}
		}
		if time.Now().After(until) {
			_, counts := s.Learned("vehicle-s")
			t.Fatalf("no version %d or later after four minutes: %+v", least, counts)
		}
		do()
	}
}

// TestAModelLearnsWhileItServes: the truth of a dark night comes back, idle time trains, better weights serve; a rollback
// serves the first ones again, and a restart serves what served last.
func TestAModelLearnsWhileItServes(t *testing.T) {
	dir, recipe := trainable(t)
	s := learning(t, dir)
	night := scene.Night()
	night.Light, night.Rain, night.Noise, night.Occlusion = 0.15, 0.5, 0.05, 0.35

	// Lessons never run out: a slow host judges few of its candidates on each.
	next := 1000
	teach := func() {
		if err := s.Client().Teach(t.Context(), "vehicle-s", drawLessons(t, recipe, next, 60, &night)); err != nil {
			t.Fatal(err)
		}
		next += 60
	}
	awaitVersion(t, s, 2, teach)
	_, counts := s.Learned("vehicle-s")
	t.Logf("%+v", counts)
	if counts.Drifts == 0 || counts.Steps == 0 || s.SpareSteps() == 0 {
		t.Errorf("published after %+v and %d spare steps, want a drift and steps", counts, s.SpareSteps())
	} else if s.Config().GPU && counts.Stopped == 0 {
		t.Errorf("%+v: no step stopped between two layers, as a GPU's do", counts)
	}

	if err := s.Client().RollBack(t.Context(), "vehicle-s", "1"); err != nil {
		t.Fatal(err)
	}

	// The gateway does the same.
	one, _ := s.Learned("vehicle-s")
	answer, err := http.Post("http://"+s.Config().HTTP+"/v2/repository/models/vehicle-s/rollback", "application/json", strings.NewReader(`{"parameters": {"version": "1"}}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	before, _ := s.Learned("vehicle-s")
	if answer.StatusCode != http.StatusOK || before <= one {
		t.Errorf("rolled back over REST: %s, version %d after %d", answer.Status, before, one)
	}
	last := awaitVersion(t, s, before, func() {})
	var e *frontend.CommandError
	if err := s.Client().RollBack(t.Context(), "vehicle-s", "77"); !errors.As(err, &e) || e.Code != frontend.CommandFailed {
		t.Errorf("rolled back to a version that never was: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = learning(t, dir)
	if v := awaitVersion(t, s, 1, func() {}); v != last {
		t.Errorf("version %d after the restart, want %d", v, last)
	}
	first, now := readWeights(t, dir, recipe, 1), readWeights(t, dir, recipe, last)
	for i := range first {
		if first[i] != now[i] {
			t.Fatal("what was rolled back to differs from the first version")
		}
	}
}

func readWeights(t *testing.T, dir string, r models.Recipe, version int) []float32 {
	w, err := learn.OpenStore(dir, r.Net()).Weights(version)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestAModelThatCannotBeTrainedServesOn: a declaration that makes no sense costs the model nothing, and a model that
// nobody learns cannot be taught.
func TestAModelThatCannotBeTrainedServesOn(t *testing.T) {
	dir, _ := trainable(t)
	if err := os.WriteFile(filepath.Join(dir, "vehicle-s", "training.json"), []byte(`{"height": 32, "width": 48, "classes": 2, "layers": [{"flatten": true}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	s := learning(t, dir)
	awaitVersion(t, s, 1, func() {})
	var e *frontend.CommandError
	err := s.Client().Teach(context.Background(), "vehicle-s", []frontend.LabelledSample{{Input: make([]byte, 32*48*3)}})
	if !errors.As(err, &e) || e.Code != frontend.CommandUnknown {
		t.Errorf("taught a model that nobody learns: %v", err)
	}
}

// nameTeacher puts a model into a repository and has it label one in so many inputs of vehicle-s.
func nameTeacher(t *testing.T, dir, teacher string, every int) {
	t.Helper()
	if err := os.CopyFS(filepath.Join(dir, teacher), os.DirFS(filepath.Join("models", teacher))); err != nil {
		t.Fatal(err)
	}
	about, initial, _, err := learn.ReadTraining(filepath.Join(dir, "vehicle-s"))
	if err != nil {
		t.Fatal(err)
	}
	about.Teacher, about.Every = teacher, every
	if err := learn.WriteTraining(filepath.Join(dir, "vehicle-s"), about, initial); err != nil {
		t.Fatal(err)
	}
}

// askUntil asks vehicle-s about one picture again and again, until its learner has done something.
func askUntil(t *testing.T, s *System, about frontend.LabelledSample, done func(learn.Counts) bool) {
	t.Helper()
	input, err := s.Client().Buffer(len(about.Input))
	if err != nil {
		t.Fatal(err)
	}
	copy(input.Bytes(), about.Input)

	waitFor(t, func() bool {
		// An answer that comes late teaches as well as any other.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if r, err := s.Client().Do(ctx, frontend.Request{Model: "vehicle-s", Input: input}); err == nil {
			r.Release()
		}
		_, counts := s.Learned("vehicle-s")
		return done(counts)
	})
}

// TestATeacherOfTheRepositoryLabels: without truth, inputs that are asked about get their classes from another model, in steps
// that the scheduler orders. Their answers come with them.
func TestATeacherOfTheRepositoryLabels(t *testing.T) {
	dir, recipe := trainable(t)
	nameTeacher(t, dir, "vehicle-m", 2)
	s := learning(t, dir)
	askUntil(t, s, drawLessons(t, recipe, 0, 1, nil)[0], func(c learn.Counts) bool { return c.Labelled >= 8 })
	if _, counts := s.Learned("vehicle-s"); counts.Sampled < counts.Labelled || s.SpareSteps() == 0 {
		t.Errorf("%+v after %d spare steps", counts, s.SpareSteps())
	} else if counts.Served != counts.Labelled {
		t.Errorf("%+v: the answers to all sampled inputs are known", counts)
	}
}

// TestATeacherOfAnotherSizeTrainsNothing: the model serves on, and nobody learns it.
func TestATeacherOfAnotherSizeTrainsNothing(t *testing.T) {
	dir, recipe := trainable(t)
	nameTeacher(t, dir, "detector-s", 1)
	s := learning(t, dir)
	awaitVersion(t, s, 1, func() {})

	var e *frontend.CommandError
	err := s.Client().Teach(t.Context(), "vehicle-s", drawLessons(t, recipe, 0, 1, nil))
	if !errors.As(err, &e) || e.Code != frontend.CommandUnknown {
		t.Errorf("taught a model whose teacher takes other images: %v", err)
	}
}

// nameScores gives a model's only output another name, in its configuration and in its file.
func nameScores(t *testing.T, dir, name string) {
	t.Helper()
	for _, file := range []string{"config.pbtxt", "1/model.onnx"} {
		path := filepath.Join(dir, file)
		old, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, bytes.ReplaceAll(old, []byte("scores"), []byte(name)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestATeacherThatFailsEndsNoLearner: one whose answers have no scores is asked again and again, and the model is learnt from
// truth meanwhile.
func TestATeacherThatFailsEndsNoLearner(t *testing.T) {
	dir, recipe := trainable(t)
	nameTeacher(t, dir, "vehicle-m", 1)
	nameScores(t, filepath.Join(dir, "vehicle-m"), "colour")
	s := learning(t, dir)
	lessons := drawLessons(t, recipe, 0, 10, nil)
	askUntil(t, s, lessons[0], func(c learn.Counts) bool { return c.TeacherFailed >= 2 })

	if err := s.Client().Teach(t.Context(), "vehicle-s", lessons); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		_, counts := s.Learned("vehicle-s")
		return counts.Labelled == len(lessons)
	})
}

// TestTaughtAnswersAreKnown: what version 1 answered is known while version 1 serves. What another version answered is not, nor what no one says.
func TestTaughtAnswersAreKnown(t *testing.T) {
	dir, recipe := trainable(t)
	s := learning(t, dir)
	lessons := drawLessons(t, recipe, 0, 30, nil)
	for i := range lessons {
		lessons[i].Answered, lessons[i].Version = lessons[i].Class, []string{"1", "77", ""}[i%3]
		lessons[i].Sure = []float32{0.5, 0}[i/3%2]
	}
	awaitVersion(t, s, 1, func() {})
	if err := s.Client().Teach(t.Context(), "vehicle-s", lessons); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		_, counts := s.Learned("vehicle-s")
		return counts.Labelled == 30
	})
	if _, counts := s.Learned("vehicle-s"); counts.Served != 10 {
		t.Errorf("%+v: want 10 of 30 answers known", counts)
	}
}

// earlierLearner takes lessons as a release did that knew no answers: the upper half of a class is part of it.
type earlierLearner struct{ taught, refused int }

func (l *earlierLearner) Teach(_ string, packed []byte) error {
	if binary.LittleEndian.Uint32(packed) > 5 {
		l.refused++
		return errors.New("sample 0: want 0 to 5")
	}
	l.taught++
	return nil
}

func (l *earlierLearner) RollBack(string) error { return nil }

// TestAnEarlierBackendIsTaughtWithoutAnswers: it refuses the lesson with answers, and gets one without them.
func TestAnEarlierBackendIsTaughtWithoutAnswers(t *testing.T) {
	dir, recipe := trainable(t)
	s := learning(t, dir)
	awaitVersion(t, s, 1, func() {})
	var earlier earlierLearner
	s.backend.Learns("vehicle-s", &earlier)

	lessons := drawLessons(t, recipe, 0, 1, nil)
	lessons[0].Answered, lessons[0].Version, lessons[0].Sure = 3, "1", 0.25
	if err := s.Client().Teach(t.Context(), "vehicle-s", lessons); err != nil || earlier.taught != 1 || earlier.refused != 2 {
		t.Errorf("%v, %+v: want two refused and one taken", err, earlier)
	}

	lessons[0].Sure = float32(math.NaN())
	if err := s.Client().Teach(t.Context(), "vehicle-s", lessons); err == nil || earlier.taught != 1 || earlier.refused != 2 {
		t.Errorf("%v, %+v: a probability that is no number was sent", err, earlier)
	}
}
