package sched

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestWheelAgainstASearch: after any sequence of arming, disarming and steps of time, at any distance, the wheel returns the timers that are due, and
// next is never late.
func TestWheelAgainstASearch(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	spans := []int64{100, 1 << wheelShift, 20e6, nearSlots << wheelShift, 500e6, farSlots << farShift, 20e9}
	for range 30 {
		w, at, now, span := newWheel(0), make([]Time, 1+rng.IntN(60)), Time(0), spans[rng.IntN(len(spans))]
		w.grow(len(at))
		for i := range at {
			at[i] = Never
		}
		for range 2000 {
			i := rng.IntN(len(at))
			switch rng.IntN(4) {
			case 0, 1:
				at[i] = now - Time(rng.Int64N(span/8+1)) + Time(rng.Int64N(span))
				w.arm(int32(i), at[i])
			case 2:
				at[i] = Never
				w.off(int32(i))
			default:
				now += Time(rng.Int64N(span/int64(len(at)) + 2))
				checkDue(t, w, at, now)
			}
			if soonest := slices.Min(at); w.next() > soonest {
				t.Fatalf("at %d: next is %d, a timer is due at %d", now, w.next(), soonest)
			}
		}
	}
}

// checkDue advances the wheel, and compares the timers that are due with those that a search finds.
func checkDue(t *testing.T, w *wheel, at []Time, now Time) {
	due := w.advance(now, nil)
	slices.Sort(due)
	var want []int32
	for i := range at {
		if at[i] <= now {
			want = append(want, int32(i))
			at[i] = Never
		}
	}
	if !slices.Equal(due, want) {
		t.Fatalf("at %d: %v are due, want %v", now, due, want)
	}
}

// TestAFarTimerWakesNobody: until a timer seconds ahead is due, the wheel asks for no step of time.
func TestAFarTimerWakesNobody(t *testing.T) {
	w := newWheel(0)
	w.grow(2)
	w.arm(0, 3e9+12345)
	w.arm(1, 30e9)
	wakes := 0
	for at := w.next(); at < 3e9+12345; at = w.next() {
		if due := w.advance(at, nil); len(due) > 0 {
			t.Fatalf("%v are due at %d", due, at)
		}
		wakes++
	}
	if wakes > 0 || w.next() != 3e9+12345 {
		t.Errorf("%d steps before the first timer, then next is %d", wakes, w.next())
	}

	// A timer beyond the far ring is looked at once each round.
	for w.advance(w.next(), nil); w.next() < 30e9; w.advance(w.next(), nil) {
		wakes++
	}
	if wakes > 8 {
		t.Errorf("%d steps until a timer 30 s ahead", wakes)
	}
}
