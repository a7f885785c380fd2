package plan

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// drawFeatures draws inputs of 32 correlated dimensions, shifted in one direction.
func drawFeatures(rng *rand.Rand, inputs int, shift, spread float64) Features {
	const dim = 32
	f := Features{Dim: dim}
	for range inputs {
		common := rng.NormFloat64()
		for c := range dim {
			x := spread * (0.5*common + rng.NormFloat64())
			if c < 8 {
				x += shift
			}
			f.Values = append(f.Values, float32(math.Abs(x))) // roughly activations after a ReLU
		}
	}
	return f
}

func drawAnswers(rng *rand.Rand, labelled int, accuracy float64) Answers {
	a := Answers{Labelled: labelled}
	for range labelled {
		if rng.Float64() < accuracy {
			a.Right++
		}
	}
	return a
}

// TestDriftAlarmsAtMostAsOftenAsAllowed has 1,000 periods without drift at a level of 5 %.
func TestDriftAlarmsAtMostAsOftenAsAllowed(t *testing.T) {
	alarms := 0
	for period := range uint64(1000) {
		rng := rand.New(rand.NewPCG(period, 70))
		r, err := Drift(drawFeatures(rng, 30, 0, 1), drawFeatures(rng, 30, 0, 1), drawAnswers(rng, 400, 0.9), drawAnswers(rng, 100, 0.9), 0.05)
		if err != nil {
			t.Fatal(err)
		}
		if r.Drifted {
			alarms++
		}
	}
	t.Logf("%.1f %% false alarms", float64(alarms)/10)
	if alarms > 50 {
		t.Errorf("%d false alarms in 1,000 periods, want at most 50", alarms)
	}
}

// TestDriftIsDetected prints the power of both tests and of either, and requires 95 % for the larger drifts of
// AdaInf's figure 5 (up to 9 % for person, 15 % for vehicle).
func TestDriftIsDetected(t *testing.T) {
	const periods = 60
	for _, c := range []struct {
		inputs   int // of each side
		shift    float64
		labelled int // of the period; 1,000 of the old data
		loss     float64
		least    float64
	}{
		{0, 0, 300, 0, 0}, {0, 0, 300, 0.03, 0}, {0, 0, 300, 0.06, 0}, {0, 0, 300, 0.09, 0.95}, {0, 0, 300, 0.15, 0.95},
		{0, 0, 100, 0.09, 0}, {0, 0, 100, 0.15, 0.95},
		{60, 0.6, 0, 0, 0}, {60, 0.8, 0, 0, 0}, {60, 1, 0, 0, 0.9}, {60, 0.8, 100, 0.09, 0},
	} {
		found := 0
		for period := range uint64(periods) {
			rng := rand.New(rand.NewPCG(period, 71))
			r, err := Drift(drawFeatures(rng, c.inputs, 0, 1), drawFeatures(rng, c.inputs, c.shift, 1), drawAnswers(rng, 1000, 0.92), drawAnswers(rng, c.labelled, 0.92-c.loss), 0.05)
			if err != nil {
				t.Fatal(err)
			}
			if r.Drifted {
				found++
			}
		}
		share := float64(found) / periods
		t.Logf("%2d inputs shifted by %.1f, %3d labels that lose %2.0f %%: %3.0f %% detected", c.inputs, c.shift, c.labelled, 100*c.loss, 100*share)
		if share < c.least {
			t.Errorf("%+v: %.0f %% detected", c, 100*share)
		}
	}
}

func TestAnswerPIsFishers(t *testing.T) {
	// The lady tasting tea: 3 of 4 right has a probability of 17/70, and the same with the sides exchanged.
	if p := answerP(Answers{4, 3}, Answers{4, 1}); abs(p-17.0/70) > 1e-12 {
		t.Errorf("%v, want 17/70", p)
	}
	if p := answerP(Answers{1000, 900}, Answers{1000, 900}); p < 0.5 {
		t.Errorf("equal accuracies: %v", p)
	}
	// Newcombe 1998, example (a): 56/70 and 48/80: 0.0524 to 0.3339.
	if loss, low, high := accuracyLoss(Answers{70, 56}, Answers{80, 48}); abs(loss-0.2) > 1e-12 || abs(low-0.0524) > 1e-4 || abs(high-0.3339) > 1e-4 {
		t.Errorf("%v in %v to %v, want 0.2 in 0.0524 to 0.3339", loss, low, high)
	}
}

func TestDriftRefuses(t *testing.T) {
	one, none := Features{2, []float32{1, 2}}, Features{Dim: 2}
	for want, call := range map[string]func() (DriftReport, error){
		"level is NaN":       func() (DriftReport, error) { return Drift(one, one, Answers{}, Answers{}, math.NaN()) },
		"recent answers":     func() (DriftReport, error) { return Drift(one, one, Answers{}, Answers{1, 2}, 0.05) },
		"old features: numb": func() (DriftReport, error) { return Drift(Features{2, []float32{1}}, one, Answers{}, Answers{}, 0.05) },
		"input 1, number 0 is NaN": func() (DriftReport, error) {
			return Drift(one, Features{1, []float32{1, float32(math.NaN())}}, Answers{}, Answers{}, 0.05)
		},
		"recent features: dimension is 1": func() (DriftReport, error) { return Drift(one, Features{1, nil}, Answers{}, Answers{}, 0.05) },
	} {
		if _, err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	r, err := Drift(none, none, Answers{}, Answers{}, 0.05)
	if err != nil || r.Drifted || r.ImpactLow != -1 || r.ImpactHigh != 1 {
		t.Errorf("%+v, %v; want that nothing is known", r, err)
	}
}

// TestAWindowThatRaisedAFalseAlarmIsNoReference: a window that looks unlike the reference by chance looks unlike the next
// window, too. So the reference after an alarm has to be of later samples: then the next alarm is as rare as any.
func TestAWindowThatRaisedAFalseAlarmIsNoReference(t *testing.T) {
	const level = 0.1
	differ := func(old, recent Features) bool {
		r, err := Drift(old, recent, Answers{}, Answers{}, 2*level)
		if err != nil {
			t.Fatal(err)
		}
		return r.Drifted
	}

	alarms, same, later := 0, 0, 0
	for period := range uint64(1500) {
		rng := rand.New(rand.NewPCG(period, 71))
		window := drawFeatures(rng, 60, 0, 1)
		if !differ(drawFeatures(rng, 60, 0, 1), window) {
			continue
		}
		alarms++
		next := drawFeatures(rng, 60, 0, 1)
		if differ(window, next) {
			same++
		}
		if differ(drawFeatures(rng, 60, 0, 1), next) {
			later++
		}
	}
	t.Logf("after %d false alarms of 1,500 another one: %d with the window as the reference, %d with later samples", alarms, same, later)
	if 2*same < 3*later || float64(later) > 2*level*float64(alarms) {
		t.Errorf("%d and %d, want at least half as many again with the window", same, later)
	}
}

// TestDriftInPieces shows that the report does not depend on the pieces, and that the real division has the energy of
// the sums over all pairs.
func TestDriftInPieces(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 70))
	old, recent := drawFeatures(rng, 90, 0, 1), drawFeatures(rng, 60, 1, 1)
	whole, err := Drift(old, recent, Answers{50, 40}, Answers{50, 45}, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	test, err := NewDriftTest(old, recent, Answers{50, 40}, Answers{50, 45}, 0.05)
	if err != nil {
		t.Fatal(err)
	}
	pieces := 1
	for ; !test.Advance(7); pieces++ {
	}
	if got := test.Report(); got != whole || pieces != (150+1+driftShuffles+6)/7 {
		t.Errorf("in %d pieces %+v, in one %+v", pieces, got, whole)
	}

	mean := func(a, b Features) (sum float64) {
		for i := range a.rowCount() {
			for k := range b.rowCount() {
				d := 0.0
				for c := range a.Dim {
					diff := float64(a.Values[i*a.Dim+c]) - float64(b.Values[k*b.Dim+c])
					d += diff * diff
				}
				sum += math.Sqrt(d)
			}
		}
		return sum / float64(a.rowCount()*b.rowCount())
	}
	if want := 2*mean(old, recent) - mean(old, old) - mean(recent, recent); math.Abs(test.real-want) > 1e-6 {
		t.Errorf("the sides are %v apart, want %v", test.real, want)
	}
}

// TestDriftEndsEarly: without drift a test ends once too many divisions are as far apart as the real one, and says the same as if
// it had made all.
func TestDriftEndsEarly(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 70))
	test, err := NewDriftTest(drawFeatures(rng, 90, 0, 1), drawFeatures(rng, 60, 0, 1), Answers{}, Answers{}, 0.005)
	if err != nil {
		t.Fatal(err)
	}
	units := 1
	for ; !test.Advance(1); units++ {
	}
	if r := test.Report(); r.Drifted || r.FeatureP <= 0.0025 || units > 150+1+200 {
		t.Errorf("%+v after %d units, want an end by 200 divisions", r, units)
	}

	for test.shuffled < driftShuffles {
		test.shuffle()
	}
	if r := test.Report(); r.Drifted {
		t.Errorf("all divisions say %+v", r)
	}
}

// TestDriftAtTheLevelOfOneLook: at a sixth of 3 %, the level of one look of a learner, features may differ as much in four random divisions
// as in the real one.
func TestDriftAtTheLevelOfOneLook(t *testing.T) {
	for atLeast, drifted := range map[int]bool{1: true, 5: true, 6: false} {
		test := DriftTest{level: 0.03 / 6, first: 2, shuffled: driftShuffles, atLeast: atLeast, report: DriftReport{AnswerP: 1}}
		if got := test.Report(); got.Drifted != drifted {
			t.Errorf("%d divisions as far apart: %+v", atLeast, got)
		}
	}
}
