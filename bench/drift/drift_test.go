package drift

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/figure"
	"downbeat.dev/models"
	"downbeat.dev/models/scene"
)

// TestSchedules: a period is as the one before it or differs much, and both happen.
func TestSchedules(t *testing.T) {
	drifts, calm := 0, 0
	for seed := range uint64(20) {
		levels := drawLevels(rand.New(rand.NewPCG(seed, 1)), 20)
		for k := 1; k < len(levels); k++ {
			switch change := math.Abs(levels[k] - levels[k-1]); {
			case change == 0:
				calm++
			case change < driftLeast || levels[k] < 0 || levels[k] > 1:
				t.Errorf("seed %d: from %v to %v", seed, levels[k-1], levels[k])
			default:
				drifts++
			}
		}
	}
	if drifts < 150 || calm < 150 {
		t.Errorf("%d drifts and %d periods without", drifts, calm)
	}
}

// TestPhases: with random phases drifts come at any moment of a learner's period, the same one for one seed and model.
func TestPhases(t *testing.T) {
	s := DefaultSetting()
	if s.phaseOf(0) != 0 || s.phaseOf(1) != 0 {
		t.Errorf("phases %v and %v without the flag", s.phaseOf(0), s.phaseOf(1))
	}

	s.Phases = true
	seen := map[time.Duration]bool{}
	for seed := range uint64(40) {
		s.Seed = seed
		for model := range uint64(2) {
			phase := s.phaseOf(model)
			if phase < 0 || phase >= Period || phase%tick != 0 || phase != s.phaseOf(model) {
				t.Errorf("seed %d, model %d: phase %v, then %v", seed, model, phase, s.phaseOf(model))
			}
			seen[phase] = true
		}
	}
	if len(seen) < 30 { // of 50; 80 draws leave out 10 in the mean
		t.Errorf("%d different phases of 80", len(seen))
	}
}

// TestMixesDriftWithTheLight: labels diverge by what figure 6 has, with each drift and at no other time.
func TestMixesDriftWithTheLight(t *testing.T) {
	most := schedules["paper"].divergence["vehicle-s"]
	farthest := 0.0
	for seed := range uint64(20) {
		levels := drawLevels(rand.New(rand.NewPCG(seed, 1)), 20)
		mixes := drawMixes(rand.New(rand.NewPCG(seed, 2)), levels, 6, most)
		for k := 1; k < len(levels); k++ {
			bits, sum := divergenceOf(mixes[k-1], mixes[k]), 0.0
			for _, share := range mixes[k] {
				sum += share
			}
			if math.Abs(sum-1) > 1e-9 || slices.Min(mixes[k]) < 0 {
				t.Fatalf("seed %d, period %d: %v", seed, k, mixes[k])
			}
			if drifts := levels[k] != levels[k-1]; drifts != (bits > 0) || drifts && (bits < divergenceLeast*0.99 || bits > most*1.01) {
				t.Errorf("seed %d, period %d: a drift is %v, the labels diverge by %v", seed, k, drifts, bits)
			}
			farthest = max(farthest, bits)
		}
	}
	if farthest < 0.9*most {
		t.Errorf("the labels diverge by %v at most, want about %v", farthest, most)
	}

	// Only the stream's own classes follow its mix, and at first all are as frequent as ever.
	levels, even := []float64{0, 1}, slices.Repeat([]float64{1.0 / 6}, 6)
	for _, name := range []string{"vehicle-s", "activity-s"} {
		r, _ := models.Find(name)
		st := &stream{recipe: r, levels: levels, mixes: [][]float64{even, {0.5, 0.1, 0.1, 0.1, 0.1, 0.1}}}
		if day := scene.Day(); *st.conditions(0) != day {
			t.Errorf("%s: the first period has %+v", name, *st.conditions(0))
		}
		c := st.conditions(1)
		if (c.Kinds[scene.Car] > 2.9) != (name == "vehicle-s") || (c.Activities[0] > 2.9) != (name == "activity-s") {
			t.Errorf("%s: %v and %v", name, c.Kinds, c.Activities)
		}
	}
}

// TestEkyaPlans: a curve that rises is retrained for, one that is flat is not; a GPU alone has no time for ten epochs.
func TestEkyaPlans(t *testing.T) {
	e := &ekya{setting: Setting{GPUs: 4}, streams: make([]*stream, 2)}
	for i := range e.shares {
		e.shares[i].finish = 1
		if i > 3 {
			e.shares[i].finish = 0.5
		}
	}
	rising := []float64{0.8, 0.85, 0.87, 0.88, 0.885, 0.89}
	flat := []float64{0.9, 0.9, 0.9, 0.9, 0.9, 0.9}
	if epochs, tenths := e.steal([][]float64{flat, flat}); epochs != 0 || tenths != 0 {
		t.Errorf("nothing to gain: %d epochs on %d tenths", epochs, tenths)
	}
	epochs, tenths := e.steal([][]float64{rising, flat})
	if epochs == 0 || tenths < 1 || tenths > 3 {
		t.Errorf("something to gain: %d epochs on %d tenths, want up to the 3 that cost no request", epochs, tenths)
	}
	e.setting.GPUs = 1
	if took := e.retrainTime(10, 9); took < Period {
		t.Errorf("ten epochs on one GPU take %v", took)
	}
	if a := extrapolate(rising, 10); a <= 0.89 || a > 0.93 {
		t.Errorf("extrapolated to %v", a)
	}
	if a := extrapolate(rising, 2); a != 0.87 {
		t.Errorf("read off: %v", a)
	}
}

// TestServing: a share of the GPUs that is taken away is missed.
func TestServing(t *testing.T) {
	s := DefaultSetting()
	whole, err := simulateServing(s, 1)
	if err != nil {
		t.Fatal(err)
	}
	half, err := simulateServing(s, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	if whole.finish < 0.999 || whole.idle < 0.05 || whole.idle > 0.5 || half.finish > 0.9 {
		t.Errorf("whole GPUs %+v, halves %+v", whole, half)
	}
}

// TestLearningTime shows that learners get nearly all of the idle time, at the peak, too.
func TestLearningTime(t *testing.T) {
	for _, c := range []struct{ load, least, most float64 }{{0.5, 0.95, 1.05}, {0.7, 0.95, 1.05}, {0.96, 0.75, 1.05}} {
		s := DefaultSetting()
		s.Load = c.load

		served, err := simulateServing(s, 1)
		if err != nil {
			t.Fatal(err)
		}
		learning, err := simulateLearning(s)
		if err != nil {
			t.Fatal(err)
		}
		if share := learning.Seconds() / (served.idle * float64(s.GPUs)); share < c.least || share > c.most {
			t.Errorf("at a load of %v learners get %.3f of the idle time, want %v to %v", c.load, share, c.least, c.most)
		}
	}

	given := DefaultSetting()
	given.Given = &Given{Learning: time.Second, Finish: 1}
	if got, err := simulateLearning(given); got != time.Second || err != nil {
		t.Errorf("of 1 s that is given, %v, %v", got, err)
	}
}

// TestRecovery: what counts as recovered, and who has seen new weights.
func TestRecovery(t *testing.T) {
	old, fresh := []float32{1}, []float32{2}
	v := view{stream: &stream{levels: []float64{0, 1}, testsOf: 1}, period: 1, before: 0.95, full: 0.92}
	note := func(weights []float32, accuracy float64) {
		v.accuracy, v.serving = accuracy, weights
		if v.seconds == 0 {
			v.first, v.recover = accuracy, -1
		}
		v.noteSecond(weights, old)
	}
	for range 10 {
		note(old, 0.85)
	}
	for range 40 {
		note(fresh, 0.91)
	}
	var sum tally
	sum.add(&v, true)
	if r := sum.row("test", Setting{GPUs: 1, Periods: 1}); r.RecoverS != 10 || r.SeenNewPct != 80 || r.AsRetrained != 80 || r.DetectedPct != 100 || math.Abs(r.Accuracy-0.898) > 1e-9 {
		t.Errorf("%+v", r)
	}
}

// TestLateAlarms: an alarm that notices the drift of an earlier period is neither false nor in time.
func TestLateAlarms(t *testing.T) {
	levels := []float64{0, 1, 1, 1, 1}
	alarms := []bool{true, false, false, true, true}

	var sum tally
	for period, alarmed := range alarms {
		for number := range uint64(2) {
			v := &view{stream: &stream{number: number, levels: levels}, period: period, seconds: 50}
			sum.add(v, alarmed && (number == 0 || period == 1)) // the second model's drift is never noticed
		}
	}

	// The first model has two false alarms in its first and last period; its drift is noticed after two periods.
	if sum.drifts != 2 || sum.detected != 0 || sum.calm != 3 || sum.falseAlarms != 2 {
		t.Errorf("%d of %d drifts noticed in time, %d of %d alarms false; want 0 of 2 and 2 of 3", sum.detected, sum.drifts, sum.falseAlarms, sum.calm)
	}
}

func TestRowsHaveTheirKeys(t *testing.T) {
	var b bytes.Buffer
	if err := figure.WriteLines(&b, Row{Policy: "ours", GPUs: 4}); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, key := range strings.Fields("policy gpus accuracy finish_pct seen_new_pct as_retrained_pct recover_s false_alarm_pct detected_pct") {
		if _, ok := got[key]; !ok {
			t.Errorf("no %s in %v", key, got)
		}
	}
}

func TestBadSettingsAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Setting){
		"gpus: 0: want":   func(s *Setting) { s.GPUs = 0 },
		"load: 2: want":   func(s *Setting) { s.Load = 2 },
		"tests: 10: want": func(s *Setting) { s.Tests = 10 },
		"schedule: \"x\"": func(s *Setting) { s.Schedule = "x" },
		"periods: 1":      func(s *Setting) { s.Periods = 1 },
		"no-such-folder/": func(s *Setting) { s.Models = "no-such-folder" },
	} {
		s := DefaultSetting()
		change(&s)
		if _, err := Policies()[0].Run(t.Context(), s, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want …%s…", err, want)
		}
	}
	if _, err := Select("none,x"); err == nil || !strings.Contains(err.Error(), `policy "x": want all`) {
		t.Error(err)
	}
	if trainTime() != 3*answerTime(32) || answerTime(32) < 38*time.Millisecond {
		t.Errorf("a step takes %v, a batch %v", trainTime(), answerTime(32))
	}
}
