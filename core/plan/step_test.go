package plan

import (
	"testing"
	"time"
)

// TestABurstIsNoStep shows that rates fall back after a burst, that they stay after a lasting step, which also makes its
// prices usual, and that what came long before a step is forgotten.
func TestABurstIsNoStep(t *testing.T) {
	const every = 20 * time.Millisecond
	p := NewPricer(func(recent, rate float64) bool { return recent > 1.3*rate || rate > 1.3*recent })
	follow := func(recent, rate float64) float64 {
		p.recent, p.rate, p.scale = recent, rate, 1
		p.followSteps(every)
		return p.scale
	}

	if by := follow(2000, 1000); by != 2 {
		t.Fatalf("twice the demand scales rates by %v, want 2", by)
	}
	for range 3 {
		if by := follow(1900, 1950); by != 1 {
			t.Fatalf("while demand stays, rates are scaled by %v", by)
		}
	}
	if by := follow(1200, 1800); by != 1200.0/1800 {
		t.Errorf("a fall beyond chance scales rates by %v, want what is measured", by)
	}

	// Demand is as before within chance.
	follow(2000, 1000)
	if by := follow(1200, 1500); by != 0.8 {
		t.Errorf("after a burst rates are scaled by %v, want back to the 1200 that come", by)
	}
	if by := follow(1200, 1200); by != 1 || p.step.before != 0 {
		t.Errorf("once over, a burst scales rates by %v", by)
	}

	// A step that lasts is told from a burst, and later the time before it says nothing.
	follow(2000, 1000)
	for n := 1; n <= 60; n++ {
		since := time.Duration(n) * every
		if by := follow(1950, 2000); by != 1 {
			t.Fatalf("in a lasting step, rates are scaled by %v", by)
		}

		// At the ends themselves rounding decides.
		if since == 300*time.Millisecond || since == time.Second {
			continue
		}
		if got, want := p.step.lasts(), since > 300*time.Millisecond && since < time.Second; got != want {
			t.Fatalf("after %v the step lasts: %v, want %v", since, got, want)
		}
	}
	if by := follow(1100, 1400); by != 1 {
		t.Errorf("long after a step, rates are scaled by %v", by)
	}
}

// TestALastingStepIsUsual: its price is the usual one at once.
func TestALastingStepIsUsual(t *testing.T) {
	var u usualPrice
	u.update(&PricedHome{Price: 1}, false, usualSpan)
	if got := u.update(&PricedHome{Price: 5}, false, 0.02); got > 1.1 {
		t.Errorf("at the begin of a rise the usual price is %v, want about 1", got)
	}
	if got := u.update(&PricedHome{Price: 5}, true, 0.02); got != 5 {
		t.Errorf("once demand has risen for good it is %v, want 5", got)
	}
}

// TestASuddenRiseIsFollowedAtOnce shows that rates that rise to more than four times follow the last fortieth of a second, and
// that smaller rises, which it may show by chance, follow the last tenth.
func TestASuddenRiseIsFollowedAtOnce(t *testing.T) {
	p := NewPricer(func(recent, rate float64) bool { return recent > 1.3*rate || rate > 1.3*recent })
	for _, x := range []struct{ rate, recent, latest, want float64 }{
		{200, 400, 1000, 5},
		{200, 400, 790, 2},
		{200, 400, 300, 2},
		{200, 1000, 900, 5},
		{200, 200, 1000, 1}, // the tenth of a second does not differ beyond chance yet
	} {
		p.step = step{}
		p.rate, p.recent, p.latest, p.scale = x.rate, x.recent, x.latest, 1
		if p.followSteps(20 * time.Millisecond); p.scale != x.want {
			t.Errorf("%v requests/s, lately %v and then %v, are scaled by %v, want %v", x.rate, x.recent, x.latest, p.scale, x.want)
		}
	}
}
