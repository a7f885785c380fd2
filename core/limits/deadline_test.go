package limits

import (
	"testing"
	"time"
)

// TestOneRequestThroughTheLedger follows requests from their caller's deadline to the time when their batch is ripe.
// It checks each room's share, and that all shares together leave time to batch.
func TestOneRequestThroughTheLedger(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name                        string
		budget                      time.Duration // also the SLO
		trip, p99, ctrl, data, exec time.Duration // measured; ℓ(n+1)
		n                           int           // requests of the batch with one more, also the largest
		back, late, way, inputs     time.Duration // the time that is subtracted
	}{
		{"all is quick", 50_000 * us, 10 * us, 0, 20 * us, us, 10_000 * us, 8, 200 * us, 500 * us, 20 * us, 8 * us},
		{"a usual cluster", 50_000 * us, 600 * us, 2_000 * us, 300 * us, 20 * us, 10_000 * us, 8, 600 * us, 2_000 * us, 300 * us, 160 * us},
		{"everyone is slow", 50_000 * us, time.Second, time.Minute, time.Second, time.Second, 10_000 * us, 8, 5_000 * us, 11_250 * us, 5_000 * us, 8_000 * us},
		{"a short budget", 5_000 * us, 2_000 * us, 4_000 * us, 3_000 * us, 700 * us, 1_000 * us, 2, 500 * us, 1_125 * us, 1_250 * us, 1_250 * us},
	} {
		told := c.budget - ReturnMargin(ReturnTime(c.trip), c.budget)
		aim := told - OverrunMargin(Overrun(c.p99, OverrunLeast), told)
		mostCtrl, mostData := DelaysMost(c.budget, c.n)
		way, inputs := min(c.ctrl, mostCtrl), time.Duration(c.n)*min(c.data, mostData)
		frontrun := aim - c.exec - way - inputs
		ripe := frontrun - HasteMost(c.budget)

		for _, s := range []struct {
			step      string
			got, want time.Duration
		}{
			{"told", told, c.budget - c.back},
			{"aim", aim, c.budget - c.back - c.late},
			{"way", way, c.way},
			{"inputs", inputs, c.inputs},
			{"frontrun", frontrun, c.budget - c.back - c.late - c.exec - c.way - c.inputs},
			{"ripe", ripe, c.budget - c.back - c.late - c.exec - c.way - c.inputs - c.budget*15/100},
		} {
			if s.got != s.want {
				t.Errorf("%s: %s %v, want %v", c.name, s.step, s.got, s.want)
			}
		}

		// The rooms' shares are less than a budget: 10 + 22.5 + 25 + 25 + 15 per cent.
		if ripe+c.exec <= 0 {
			t.Errorf("%s: %v are left of %v for the batch itself", c.name, ripe+c.exec, c.budget)
		}
	}
}

// TestLatenessIsLearntOnce shows that inherited lateness counts as far as it is expected, and own lateness in full.
func TestLatenessIsLearntOnce(t *testing.T) {
	for _, c := range []struct{ late, inherited, expected, want time.Duration }{
		{30, 0, 0, 30},   // a stumble
		{30, 30, 0, 0},   // the batch behind it
		{34, 30, 0, 4},   // also late by itself
		{30, 30, 5, 5},   // as far as such lateness is usual
		{10, 5, 10, 10},  // in a chain of batches that are always late
		{-5, -20, 0, -5}, // early
		{-5, 10, 0, -15}, // faster than ℓ by more than what it inherited
	} {
		if got := Lateness(c.late, c.inherited, c.expected); got != c.want {
			t.Errorf("%v late, %v of it inherited, %v expected: %v, want %v", c.late, c.inherited, c.expected, got, c.want)
		}
	}
}

// TestNoMarginIsNegative: nothing can be subtracted from a budget that is over or zero.
func TestNoMarginIsNegative(t *testing.T) {
	if m := OverrunMargin(Overrun(int64(2e6), 0), -5); m != 0 {
		t.Errorf("an overrun takes %d of a deadline that is past", m)
	}
	if m := OverrunMargin(Overrun(int64(0), 0), 50e6); m != 0 {
		t.Errorf("%d are taken where batches end on time and wake-ups are exact", m)
	}
	if l := Usual(8 * time.Millisecond); l != 7*time.Millisecond {
		t.Errorf("a batch of ℓ = 8 ms usually takes %v, want 7 ms", l)
	}
	if d := OverdueAfter(time.Second); d != time.Second/8 {
		t.Errorf("reads of a batch with a second may take %v, want an eighth", d)
	}
}
