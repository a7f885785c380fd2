package plan

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// watchPeriod lets a new alarm watch answers: before the loss, and after it. It returns the answer after the loss that
// raised it, 0 if none did, and where the loss seemed to begin.
func watchPeriod(rng *rand.Rand, share, loss float64, reference, before, after int) (raised, since int, early bool) {
	a := NewLossAlarm(drawAnswers(rng, reference, share), 0.05/6)
	for range before {
		if a.Note(rng.Float64() < share) {
			return 0, 0, true
		}
	}
	for i := range after {
		if a.Note(rng.Float64() < share-loss) {
			return i + 1, a.Since(), false
		}
	}
	return 0, 0, false
}

// TestLossAlarmsAreRarelyFalse has 4,000 periods without a loss for each reference, at a level of 0.83 %.
func TestLossAlarmsAreRarelyFalse(t *testing.T) {
	for _, reference := range []int{100, 256} {
		for _, share := range []float64{0.85, 0.92, 0.98} {
			alarms := 0
			for period := range uint64(4000) {
				if _, _, early := watchPeriod(rand.New(rand.NewPCG(period, 90)), share, 0, reference, 750, 0); early {
					alarms++
				}
			}
			t.Logf("%d answers of the reference, %.2f right: %.2f %% false alarms", reference, share, float64(alarms)/40)
			if alarms > 33 {
				t.Errorf("%d false alarms in 4,000 periods, want at most 33", alarms)
			}
		}
	}
}

// TestOtherVersionsRaiseNoMoreAlarms has 4,000 periods without a loss in which another version serves every few answers. An
// alarm that began anew each time would be false in up to 1.4 % of them.
func TestOtherVersionsRaiseNoMoreAlarms(t *testing.T) {
	const level, each = 0.05 / 6, 50
	for _, share := range []float64{0.85, 0.92, 0.97} {
		alarms, anew := 0, 0
		for period := range uint64(4000) {
			rng := rand.New(rand.NewPCG(period, 92))
			a := NewLossAlarm(drawAnswers(rng, 256, share), level)
			raised, raisedAnew := false, false
			for range 750 / each {
				reference := drawAnswers(rng, 256, share)
				a.Follow(reference)
				b := NewLossAlarm(reference, level)
				for range each {
					right := rng.Float64() < share
					raised = a.Note(right) || raised
					raisedAnew = b.Note(right) || raisedAnew
				}
			}
			if raised {
				alarms++
			}
			if raisedAnew {
				anew++
			}
		}
		t.Logf("%.2f right: %.2f %% false alarms, %.2f %% if it begins anew", share, float64(alarms)/40, float64(anew)/40)
		if alarms > 33 || alarms >= anew {
			t.Errorf("%d false alarms in 4,000 periods, want at most 33 and fewer than %d", alarms, anew)
		}
	}
}

// TestLossAlarmIsQuick has losses in the middle of a period, and tells after how many answers the alarm is raised, and how well it knows
// when they began.
func TestLossAlarmIsQuick(t *testing.T) {
	for _, c := range []struct {
		loss   float64
		within int // the median of the answers that it takes
	}{{0.15, 250}, {0.27, 80}, {0.5, 30}} {
		var took, off []int
		for period := range uint64(400) {
			raised, since, early := watchPeriod(rand.New(rand.NewPCG(period, 91)), 0.92, c.loss, 256, 300, 1000)
			if !early && raised > 0 {
				took, off = append(took, raised), append(off, max(since-raised, raised-since))
			}
		}
		slices.Sort(took)
		slices.Sort(off)
		if len(took) < 380 {
			t.Fatalf("a loss of %v: %d of 400 alarms", c.loss, len(took))
		}
		t.Logf("a loss of %v: after %d answers, 90 %% after %d; its beginning is off by %d", c.loss, took[len(took)/2], took[len(took)*9/10], off[len(off)/2])
		if took[len(took)/2] > c.within || off[len(off)/2] > 20 {
			t.Errorf("a loss of %v: after %d answers, want %d; its beginning is off by %d", c.loss, took[len(took)/2], c.within, off[len(off)/2])
		}
	}
	if NewLossAlarm(Answers{}, 0.01) != nil || NewLossAlarm(Answers{Labelled: 10, Right: 9}, 0) != nil {
		t.Error("an alarm without a reference, or without a level")
	}
}

// TestLossAlarmReportsTheLoss: what is lost is counted from where it began.
func TestLossAlarmReportsTheLoss(t *testing.T) {
	a := NewLossAlarm(Answers{Labelled: 200, Right: 180}, 0.01)
	for i := range 100 {
		if a.Note(i%10 > 0) {
			t.Fatalf("an alarm after %d answers as right as the reference's", i)
		}
	}
	n := 1
	for !a.Note(n%2 > 0) {
		n++
	}
	r := a.Report()
	if !r.Drifted || r.AnswerP > 0.01 || r.Impact < 0.3 || r.Impact > 0.5 || r.ImpactLow > r.Impact || r.ImpactHigh < r.Impact || a.Since() < n-2 || a.Since() > n+4 {
		t.Errorf("after %d answers, %d of them since the loss: %+v", n, a.Since(), r)
	}
}
