//go:build cgo && !race

package learn

import (
	"testing"
	"time"
)

// TestALossBetweenLooksIsNoticed has night fall right after the look in the middle of a period: the alarm does not wait for the next, and what
// it calls the present is of the night.
func TestALossBetweenLooksIsNoticed(t *testing.T) {
	const nightfall = 26
	for _, brief := range []bool{false, true} {
		s := openStreet(t)
		l := s.learner(func(o *Options) { o.Brief = brief })
		noticed := 0
		for second := 1; second < 50 && noticed == 0; second++ {
			light := dark()
			if second <= nightfall {
				light = nil
			}
			for _, one := range s.draw(60, light) {
				if _, err := l.OfferLabelled(one); err != nil {
					t.Fatal(err)
				}
			}
			s.lookAt(l, time.Duration(second)*time.Second)
			if l.Counts().Drifts > 0 {
				noticed = second
			}
		}

		t.Logf("brief steps %v: noticed at %d s, %d samples of the present", brief, noticed, len(l.samples.reference))
		if noticed <= nightfall || noticed > nightfall+10 {
			t.Errorf("brief steps %v: noticed at %d s, want within 10 s of %d", brief, noticed, nightfall)
		}
		if n := len(l.samples.reference); n < 10 || n > 15*(noticed-nightfall+2) {
			t.Errorf("brief steps %v: %d samples since the loss", brief, n)
		}
		if l.gain.OfStep() < 2e-4 || l.alarm != nil || l.alarmed {
			t.Errorf("brief steps %v: a step gains %v, the alarm is on: %v", brief, l.gain.OfStep(), l.alarm != nil)
		}
	}
}

// lookAt looks for drift, in brief steps where the learner has these.
func (s *street) lookAt(l *Learner, now time.Duration) {
	s.t.Helper()
	if l.options.Brief {
		l.BeginLook(now)
		for !l.LookReady() && !l.Idle() {
			s.steps(l, 1)
			l.BeginLook(now)
		}
		if !l.LookReady() {
			return
		}
	}
	if _, _, err := l.Look(now); err != nil {
		s.t.Fatal(err)
	}
}

// TestOtherWeightsAreWatchedAnew: answers of the weights before say nothing of those that serve now.
func TestOtherWeightsAreWatchedAnew(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	s.offer(l, 200)
	s.lookAt(l, time.Second) // not due: the reference has no answers yet
	if l.alarm != nil {
		t.Fatal("an alarm without a reference")
	}
	s.lookAt(l, l.lookAfter(1))
	drifts := l.Counts().Drifts

	if err := l.publish(s.weights(), evidence{}); err != nil {
		t.Fatal(err)
	}
	s.offer(l, 400)
	s.lookAt(l, l.lookAfter(1)+time.Second)
	if l.alarm != nil || len(l.samples.unwatched) != 0 || l.Counts().Drifts != drifts {
		t.Errorf("an alarm on %d samples, %d drifts", len(l.samples.unwatched), l.Counts().Drifts)
	}
}

// TestALossIsNoticedSoon has night fall at different times of a period, as short as the demonstration's, and tells how long it is unnoticed.
// Looks alone take up to 3 s.
func TestALossIsNoticedSoon(t *testing.T) {
	const tick, perTick = 100 * time.Millisecond, 40
	sum, worst := 0.0, 0.0
	for phase := range 5 {
		s := openStreet(t)
		s.next += uint64(phase) * 7000
		l := s.learner(func(o *Options) { o.Period, o.Initial = 5*time.Second, s.draw(400, nil) })
		night := 50 + 10*phase
		ticks := 0
		for l.Counts().Drifts == 0 && ticks < night+50 {
			light := dark()
			if ticks++; ticks <= night {
				light = nil
			}
			for _, one := range s.draw(perTick, light) {
				if _, err := l.OfferLabelled(one); err != nil {
					t.Fatal(err)
				}
			}
			s.lookAt(l, time.Duration(ticks)*tick)
		}

		took := (time.Duration(ticks-night) * tick).Seconds()
		t.Logf("night falls after %d s of a period: noticed after %.1f s", phase, took)
		sum, worst = sum+took, max(worst, took)
		if took <= 0 {
			t.Errorf("a drift before the night, at %v", time.Duration(ticks)*tick)
		}
	}
	t.Logf("mean %.1f s, worst %.1f s", sum/5, worst)
	if worst > 2 {
		t.Errorf("unnoticed for %.1f s, want 2 s at most", worst)
	}
}

// TestALookKeepsThePresent: night falls in the middle of a period, and a look notices it, not the alarm. The new reference
// has samples of the night only; with those of the day the next period would differ from it, too.
func TestALookKeepsThePresent(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	for _, one := range append(s.draw(160, nil), s.draw(160, dark())...) { // one in four is for drift
		if _, err := l.OfferLabelled(one); err != nil {
			t.Fatal(err)
		}
	}
	l.samples.unwatched = nil
	if _, _, err := l.Look(l.lookAfter(3)); err != nil || l.Counts().Drifts != 1 {
		t.Fatalf("%+v, %v", l.Counts(), err)
	}
	if n := len(l.samples.reference); n < 35 || n > 45 {
		t.Errorf("%d samples of the present, of 80 of which 40 are of the night", n)
	}
}
