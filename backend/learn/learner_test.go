//go:build cgo

package learn

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
	"downbeat.dev/models"
	"downbeat.dev/models/scene"
)

// drawn keeps samples between tests, because drawing takes longer than most tests.
var drawn = map[drawnKey]Sample{}

type drawnKey struct {
	number uint64
	dark   bool
}

// street draws labelled samples of vehicle-s, unless a test sets another vehicle network. The same number gives the same sample.
type street struct {
	t      *testing.T
	recipe models.Recipe
	paint  *models.Painter
	next   uint64
}

func openStreet(t *testing.T) *street {
	t.Helper()
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	r, _ := models.Find("vehicle-s")
	return &street{t: t, recipe: r, paint: models.NewPainter(), next: 1 << 20}
}

// draw draws n samples in the dark, or under the mixed conditions of the training if c is nil.
func (s *street) draw(n int, c *scene.Conditions) (list []Sample) {
	h, w := s.recipe.Size()
	for range n {
		key := drawnKey{s.next, c != nil}
		s.next++
		if one, ok := drawn[key]; ok {
			list = append(list, one)
			continue
		}
		pixels := make([]byte, h*w*3)
		truth, err := s.recipe.Draw(s.paint, 77, key.number, c, pixels)
		if err != nil {
			s.t.Fatal(err)
		}
		drawn[key] = Sample{Input: pixels, Class: truth.Class}
		list = append(list, drawn[key])
	}
	return list
}

// weights returns the weights of the model in the tree.
func (s *street) weights() []float32 {
	m, err := onnx.Read("../../models/" + s.recipe.Name() + "/1/model.onnx")
	if err != nil {
		s.t.Fatal(err)
	}
	weights, err := s.recipe.Net().ReadWeights(m)
	if err != nil {
		s.t.Fatal(err)
	}
	return weights
}

// learner opens a learner of the model in the tree.
func (s *street) learner(change func(*Options)) *Learner {
	o := Options{Net: s.recipe.Net(), Weights: s.weights(), Version: 1, Initial: s.draw(800, nil), StepTime: 5 * time.Millisecond, Mirror: true, Seed: 1}
	if change != nil {
		change(&o)
	}
	l, err := New(o, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	return l
}

// steps runs up to n steps, until there is nothing to do.
func (s *street) steps(l *Learner, n int) (reports []Report) {
	for range n {
		r, err := l.Step()
		if err != nil {
			s.t.Fatal(err)
		}
		if r.Work == None {
			break
		}
		reports = append(reports, r)
	}
	return reports
}

// TestATeacherLabels shows that inputs without a class wait until there are enough for a teacher, and that the oldest
// of too many are dropped.
func TestATeacherLabels(t *testing.T) {
	s := openStreet(t)
	truth, asked := map[string]int{}, 0
	l := s.learner(func(o *Options) {
		o.Every = 2
		size := len(o.Initial[0].Input)
		o.Teach = func(images []byte, n int) (classes []int, err error) {
			asked += n
			for i := range n {
				classes = append(classes, truth[string(images[i*size:(i+1)*size])])
			}
			return classes, nil
		}
	})
	for _, one := range s.draw(2*(waitMax+labelBatch), nil) {
		truth[string(one.Input)] = one.Class
		if _, err := l.Offer(one.Input); err != nil {
			t.Fatal(err)
		}
	}
	reports := s.steps(l, 1000)
	if c := l.Counts(); c.Sampled != waitMax+labelBatch || c.Dropped != labelBatch || c.Labelled != waitMax || asked != waitMax || reports[0].Work != Labelling {
		t.Errorf("%+v, %d asked", c, asked)
	}
}

// TestATeacherThatFailsIsAskedAgain shows that a failure costs only the inputs of the question. Each failure makes
// the pause longer, and an answer ends that.
func TestATeacherThatFailsIsAskedAgain(t *testing.T) {
	s := openStreet(t)
	asked, answers := 0, false
	l := s.learner(func(o *Options) {
		o.Teach = func(_ []byte, n int) ([]int, error) {
			asked++
			if !answers {
				return nil, nil
			}
			return make([]int, n), nil
		}
	})

	list := s.draw(8*labelBatch, nil)
	for _, one := range list {
		if _, err := l.Offer(one.Input); err != nil {
			t.Fatal(err)
		}
	}
	r, err := l.Step()
	if err != nil || r.Unlabelled == nil || !strings.Contains(r.Unlabelled.Error(), "0 classes for 16 inputs") {
		t.Fatalf("a teacher without answers: %+v, %v; want that in the report, and no error", r, err)
	}

	// Truth still teaches while the teacher is not asked.
	if r, err := l.Step(); err != nil || r.Work != None || !l.Idle() {
		t.Errorf("at once after it: %+v, %v; want nothing to do", r, err)
	}
	if kept, err := l.OfferLabelled(list[0]); err != nil || !kept {
		t.Errorf("truth is not kept: %v", err)
	}

	for _, c := range []struct {
		at    time.Duration
		asked int
	}{{999 * time.Millisecond, 1}, {time.Second, 2}, {2999 * time.Millisecond, 2}, {3 * time.Second, 3}} {
		l.BeginLook(c.at)
		if _, err := l.Step(); err != nil || asked != c.asked {
			t.Errorf("after %v: asked %d times, %v; want %d times", c.at, asked, err, c.asked)
		}
	}

	answers = true
	l.BeginLook(7 * time.Second)
	s.steps(l, 10)
	if c := l.Counts(); c.TeacherFailed != 3 || c.Dropped != 3*labelBatch || c.Labelled != 5*labelBatch+1 || l.teachPause != 0 {
		t.Errorf("%+v, pause %v; want three failures, and all else labelled without a pause", c, l.teachPause)
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	s := openStreet(t)
	detector, _ := models.Find("detector-s")
	for want, change := range map[string]func(*Options){
		"net detector-s: only classifiers": func(o *Options) { o.Net = detector.Net() },
		"version: 0: want":                 func(o *Options) { o.Version = 0 },
		"initial: 5 samples":               func(o *Options) { o.Initial = o.Initial[:5] },
		"looks: 50: want":                  func(o *Options) { o.Looks = 50 },
		"level: 2: want":                   func(o *Options) { o.Level = 2 },
		"rate: NaN: want":                  func(o *Options) { o.Rate = math.NaN() },
		"recent: 1: want":                  func(o *Options) { o.Recent = 1 },
		"every: -1: want":                  func(o *Options) { o.Every = -1 },
		"step time -1":                     func(o *Options) { o.StepTime = -1 },
		"weights: 7 numbers":               func(o *Options) { o.Weights = o.Weights[:7] },
		"weights are not all finite":       func(o *Options) { o.Weights[3] = float32(math.NaN()) },
		"initial sample 9: class: 6":       func(o *Options) { o.Initial[9].Class = 6 },
		"sample of 2 bytes":                func(o *Options) { o.Initial[9].Input = o.Initial[9].Input[:2] },
	} {
		o := Options{Net: s.recipe.Net(), Weights: s.weights(), Version: 1, Initial: s.draw(64, nil)}
		change(&o)
		if _, err := New(o, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
}

// TestTheClockOfPeriodsMayJump shows that a clock that goes back causes no repeated check, and that one check covers
// all periods that a clock skips: the samples in between are compared once, and count as one period.
func TestTheClockOfPeriodsMayJump(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	look := func(now time.Duration, want int) {
		t.Helper()
		for _, one := range s.draw(40, nil) {
			if _, err := l.OfferLabelled(one); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := l.Look(now); err != nil {
			t.Fatal(err)
		}
		if got := l.Counts().Looks; got != want {
			t.Errorf("%v: %d looks, want %d", now, got, want)
		}
	}

	look(l.lookAfter(1), 1)
	look(-time.Hour, 1)
	look(0, 1)
	look(l.lookAfter(2), 2)
	look(100*l.options.Period, 3)
	look(100*l.options.Period, 3)
	look(100*l.options.Period+l.lookAfter(1), 4)
	if d := l.Counts().Drifts; d != 0 {
		t.Errorf("%d drifts of a clock", d)
	}
}
