//go:build cgo && !race

package learn

import (
	"math"
	"testing"
	"time"
)

// liveBriefly is live for a learner whose steps are brief.
func (s *street) liveBriefly(l *Learner, n, steps int) {
	s.t.Helper()
	now := time.Duration(0)
	for look := range l.options.Looks {
		for _, one := range s.draw(n/l.options.Looks, dark()) {
			if _, err := l.OfferLabelled(one); err != nil {
				s.t.Fatal(err)
			}
		}
		now = l.options.Period / time.Duration(l.options.Looks) * time.Duration(look+1)
		l.BeginLook(now)

		// Work without the GPU is done when it is ready, as beside a backend; labels and answers are steps.
		for worked := 0; worked < steps; {
			switch {
			case l.LookReady():
				if _, _, err := l.Look(now); err != nil {
					s.t.Fatal(err)
				}
			case l.Settling():
				before, previous, seen := len(l.serving.seen), l.previous, 0
				if previous != nil {
					seen = len(previous.seen)
				}
				r, err := l.Settle()
				if err != nil {
					s.t.Fatal(err)
				}
				if !r.Published && len(l.serving.seen) > before {
					s.t.Errorf("Settle has answered %d samples itself", len(l.serving.seen)-before)
				}
				if previous != nil && previous == l.previous && len(previous.seen) > seen {
					s.t.Errorf("Settle has answered %d samples with the version before", len(previous.seen)-seen)
				}
				if r.Work == Judging {
					worked++
				}
			default:
				r, err := l.Step()
				switch {
				case err != nil:
					s.t.Fatal(err)
				case r.Inputs > l.options.Batch:
					s.t.Fatalf("a brief step of %d inputs", r.Inputs)
				case r.Work == None:
					worked = steps
				case r.Work == Training:
					worked++
				}
			}
		}
	}
}

// TestBriefStepsPublishTheSame shows that a learner that judges and checks in pieces publishes the same as one that
// judges at once.
func TestBriefStepsPublishTheSame(t *testing.T) {
	one, other := openStreet(t), openStreet(t) // both draw the same samples
	whole := one.learner(nil)
	one.live(whole, 0, 800, dark(), nil)
	brief := other.learner(func(o *Options) { o.Brief = true })
	other.liveBriefly(brief, 800, 126)

	a, b := whole.Counts(), brief.Counts()
	if a.Published == 0 || a.Published != b.Published || a.Judged != b.Judged || a.Drifts != b.Drifts || a.Looks != b.Looks {
		t.Errorf("at a stretch %+v, in pieces %+v", a, b)
	}
}

// TestADueLookIsWorthMost: until its answers exist, a due look is worth more than any step.
func TestADueLookIsWorthMost(t *testing.T) {
	s := openStreet(t)
	l := s.learner(func(o *Options) { o.Brief = true })
	for _, one := range s.draw(40, nil) {
		if _, err := l.OfferLabelled(one); err != nil {
			t.Fatal(err)
		}
	}

	due := l.lookAfter(1)
	if l.BeginLook(due - 1); math.IsInf(l.Worth(100), 1) {
		t.Error("worth most before a look is due")
	}
	if l.BeginLook(due); !math.IsInf(l.Worth(100), 1) {
		t.Errorf("worth %v while a look is due", l.Worth(100))
	}
	for !l.LookReady() {
		s.steps(l, 1)
	}
	if _, _, err := l.Look(due); err != nil || math.IsInf(l.Worth(100), 1) {
		t.Errorf("worth %v after the look, %v", l.Worth(100), err)
	}
}
