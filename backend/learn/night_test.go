//go:build cgo && !race

package learn

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/plan"
	"downbeat.dev/models/scene"
)

// Real training. The race detector would slow it down tenfold and find nothing, because a learner has one goroutine.

// accuracy measures weights on samples.
func (s *street) accuracy(weights []float32, list []Sample) float64 {
	s.t.Helper()
	j, err := newJudge(Options{Net: s.recipe.Net()}, 0, weights)
	if err != nil {
		s.t.Fatal(err)
	}
	defer j.close()
	all, err := j.answerSamples(list)
	if err != nil {
		s.t.Fatal(err)
	}
	return RightShare(all.right)
}

// live shows a learner n samples in each of some periods, with a check at the end of each.
func (s *street) live(l *Learner, from time.Duration, n int, c *scene.Conditions, spoil func(*Sample)) (until time.Duration, reports []Report) {
	now := from
	for look := range l.options.Looks {
		for _, one := range s.draw(n/l.options.Looks, c) {
			if spoil != nil {
				spoil(&one)
			}
			if _, err := l.OfferLabelled(one); err != nil {
				s.t.Fatal(err)
			}
		}
		now = from + l.options.Period/time.Duration(l.options.Looks)*time.Duration(look+1)
		if _, _, err := l.Look(now); err != nil {
			s.t.Fatal(err)
		}
		reports = append(reports, s.steps(l, 126)...)
	}
	return now, reports
}

// dark returns conditions darker and noisier than those in the models' training.
func dark() *scene.Conditions {
	c := scene.Night()
	c.Light, c.Rain, c.Noise, c.Occlusion = 0.15, 0.5, 0.05, 0.35
	return &c
}

// TestLearnsTheNight uses real weights and real gradients. Night falls, the learner notices, and its published
// weights know the night and still the day.
func TestLearnsTheNight(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	now, reports := s.live(l, 0, 1200, nil, nil)
	if c := l.Counts(); c.Drifts != 0 || len(reports) != 0 || l.Version() != 1 {
		t.Fatalf("before the night: %+v", c)
	}

	for range 2 {
		now, _ = s.live(l, now, 1200, dark(), nil)
	}
	nights, days := s.draw(1024, dark()), s.draw(1024, nil)
	before, after := s.accuracy(s.weights(), nights), s.accuracy(l.Weights(), nights)
	day, dayAfter := s.accuracy(s.weights(), days), s.accuracy(l.Weights(), days)
	t.Logf("night: %.3f, learnt %.3f; mixed: %.3f, learnt %.3f; version %d, %+v, drifts at %v", before, after, day, dayAfter, l.Version(), l.Counts(), l.Drifts())
	if l.Counts().Drifts == 0 || l.Drifts()[0] > l.options.Period*2 {
		t.Errorf("drifts at %v, want one within a period of %v", l.Drifts(), l.options.Period)
	}
	if after < before+0.07 || dayAfter < day-0.03 {
		t.Errorf("night %.3f to %.3f, mixed %.3f to %.3f", before, after, day, dayAfter)
	}
}

// TestWrongLabelsPublishNothingWorse: 30 % of the labels are another class, drawn at random.
func TestWrongLabelsPublishNothingWorse(t *testing.T) {
	s := openStreet(t)
	for _, c := range []*scene.Conditions{nil, dark()} {
		name := map[bool]string{true: "as trained", false: "night"}[c == nil]
		l := s.learner(nil)
		chance := rand.New(rand.NewPCG(1, 8))
		spoil := func(one *Sample) {
			if chance.IntN(10) < 3 {
				one.Class = (one.Class + 1 + chance.IntN(scene.VehicleClasses-1)) % scene.VehicleClasses
			}
		}
		now := time.Duration(0)
		for range 2 {
			now, _ = s.live(l, now, 800, c, spoil)
		}
		clean := s.draw(1024, c)
		before, after := s.accuracy(s.weights(), clean), s.accuracy(l.Weights(), clean)
		t.Logf("%s: %.4f, learnt %.4f; version %d, %+v", name, before, after, l.Version(), l.Counts())
		if after < before-0.02 {
			t.Errorf("%s: %.4f became %.4f", name, before, after)
		}
		if l.Counts().Judged == 0 {
			t.Errorf("%s: wrong labels woke no learning: the test shows nothing", name)
		}
	}
}

// TestWhatGoesWrong is one night in which the first publication fails, and candidates are bad in several ways.
func TestWhatGoesWrong(t *testing.T) {
	s := openStreet(t)
	full, numbers := errors.New("the disk is full"), []int(nil)
	l := s.learner(func(o *Options) {
		o.Publish = func(v Version) error {
			if numbers = append(numbers, v.Number); len(numbers) == 1 {
				return full
			}
			return nil
		}
	})
	now, reports := s.live(l, 0, 1200, dark(), nil)

	// The serving weights stay, and the next judgement tries again under another number.
	failed := slices.IndexFunc(reports, func(r Report) bool { return errors.Is(r.Discarded, full) })
	if c := l.Counts(); failed < 0 || c.Unpublished != 1 || c.Published == 0 || numbers[1] != 3 || l.Version() != numbers[len(numbers)-1] {
		t.Fatalf("%+v, versions %v, serving %d", c, numbers, l.Version())
	}
	t.Run("a loss that is no number", func(t *testing.T) { s.breakLoss(t, l) })
	t.Run("a candidate that is no number", func(t *testing.T) {
		l.candidate[0] = float32(math.Inf(1))
		expectDiscarded(t, s, l, &l.counts.NotFinite, nil)
	})
	t.Run("a worse candidate", func(t *testing.T) {
		clear(l.candidate)
		expectDiscarded(t, s, l, &l.counts.Worse, errWorse)
	})
	t.Run("rollback", func(t *testing.T) { s.rollBack(t, l, now) })
}

// TestADriftEndsALowerRate shows that discarded candidates lower the learning rate only until the next drift.
func TestADriftEndsALowerRate(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	rate := l.rate
	s.offer(l, 100)
	l.noteDrift(plan.DriftReport{Drifted: true}, time.Second)
	l.recalled = nil

	clear(l.candidate)
	expectDiscarded(t, s, l, &l.counts.Worse, errWorse)
	if l.rate != rate/2 {
		t.Errorf("rate %v after a candidate was discarded, want half of %v", l.rate, rate)
	}
	if l.noteDrift(plan.DriftReport{Drifted: true}, time.Minute); l.rate != rate {
		t.Errorf("rate %v after a drift, want %v", l.rate, rate)
	}
}

// TestTheMeanFollowsADrift lets the trainer's weights jump from 1 to 0: after many steps the candidate follows slowly,
// and after a drift soon.
func TestTheMeanFollowsADrift(t *testing.T) {
	l := openStreet(t).learner(nil)
	average := func(weight float32, steps int) float32 {
		if err := l.trainer.SetWeights(slices.Repeat([]float32{weight}, len(l.candidate))); err != nil {
			t.Fatal(err)
		}
		for range steps {
			l.averageWeights()
		}
		return l.candidate[0]
	}

	if first := average(1, 1); first != 1 {
		t.Errorf("%v after the first step, want its weight", first)
	}
	average(1, 2*meanMost)
	if left := average(0, meanLeast); left < 0.75 || left > 0.9 {
		t.Errorf("%v left after %d steps of many, want about 0.82", left, meanLeast)
	}
	average(1, 20*meanMost)
	l.noteDrift(plan.DriftReport{Drifted: true}, time.Second)
	if left := average(0, meanLeast); left < 0.3 || left > 0.5 {
		t.Errorf("%v left after %d steps of a drift, want about 0.4", left, meanLeast)
	}
}

// breakLoss makes the trainer run on weights that are not numbers.
func (s *street) breakLoss(t *testing.T, l *Learner) {
	broken := s.weights()
	for i := range broken {
		broken[i] = float32(math.NaN())
	}
	if err := l.trainer.SetWeights(broken); err != nil {
		t.Fatal(err)
	}
	l.learning, l.sinceJudge = true, 0
	rate := l.rate
	if r := s.steps(l, 1)[0]; r.Work != Training || r.Discarded == nil || l.Counts().NotFinite != 1 || l.rate != rate/2 {
		t.Errorf("%+v, %+v", r, l.Counts())
	}
	if r := s.steps(l, 1)[0]; r.Work != Training || r.Discarded != nil || !isFinite(l.trainer.Weights()) {
		t.Errorf("the next step: %+v", r)
	}
}

// expectDiscarded judges the candidate, which must be discarded and counted.
func expectDiscarded(t *testing.T, s *street, l *Learner, count *int, why error) {
	t.Helper()
	version, before := l.Version(), *count
	s.offer(l, 100)
	l.learning, l.sinceJudge = true, judgeEvery
	r := s.steps(l, 1)[0]
	if r.Work != Judging || r.Discarded == nil || r.Published || l.Version() != version || *count != before+1 {
		t.Errorf("%+v, %+v", r, l.Counts())
	}
	if why != nil && !errors.Is(r.Discarded, why) {
		t.Errorf("discarded because of %v, want %v", r.Discarded, why)
	}
}

// offer gives a learner labelled samples of the night, three in four of which judge its candidates.
func (s *street) offer(l *Learner, n int) {
	for _, one := range s.draw(n, dark()) {
		if _, err := l.OfferLabelled(one); err != nil {
			s.t.Fatal(err)
		}
	}
}

// rollBack makes the first weights serve again, under a new number and until the next drift.
func (s *street) rollBack(t *testing.T, l *Learner, now time.Duration) {
	learnt := l.numbered
	if err := l.Rollback(99); err == nil || !strings.Contains(err.Error(), "99") {
		t.Errorf("an unknown version: %v", err)
	}
	if err := l.Rollback(1); err != nil {
		t.Fatal(err)
	}
	if l.Version() != learnt+1 || l.Weights()[0] != s.weights()[0] {
		t.Errorf("version %d after %d", l.Version(), learnt)
	}

	// The same night continues, which is no drift, so the rollback holds.
	s.live(l, now, 400, dark(), nil)
	if l.Version() != learnt+1 {
		t.Errorf("version %d was published over a rollback", l.Version())
	}
}

// TestWhatWasReplacedComesBack shows that published weights that answer almost nothing correctly are replaced by
// their predecessors when candidates are judged.
func TestWhatWasReplacedComesBack(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	if err := l.publish(make([]float32, len(l.Weights())), evidence{}); err != nil {
		t.Fatal(err)
	}

	s.offer(l, 100)
	l.samples.use(40)
	s.offer(l, 40)
	l.learning, l.sinceJudge = true, judgeEvery
	r := s.steps(l, 1)[0]
	if r.Work != Judging || !r.Published || l.Counts().Reverted != 1 || l.Version() != 3 || !slices.Equal(l.Weights(), s.weights()) {
		t.Errorf("%+v, version %d, %+v", r, l.Version(), l.Counts())
	}
}

// TestKnownVersionsAreTriedFirst shows that after a drift an earlier version serves at once if it is better now.
func TestKnownVersionsAreTriedFirst(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	if err := l.publish(make([]float32, len(l.Weights())), evidence{}); err != nil {
		t.Fatal(err)
	}
	s.offer(l, 100)
	l.noteDrift(plan.DriftReport{Drifted: true, ImpactHigh: 0.5}, time.Second)

	// Two versions are known from now on: the first one, and the one that served when the night came.
	r := s.steps(l, 1)[0]
	if r.Work != Judging || !r.Published || l.Counts().Recalled != 1 || l.Version() != 3 || !slices.Equal(l.Weights(), s.weights()) || len(l.known) != 2 {
		t.Errorf("%+v, version %d, %+v, %d known", r, l.Version(), l.Counts(), len(l.known))
	}
}

// TestJudgementsAnswerNothingTwice shows what a judgement costs: the serving weights answer a sample once however many known versions are
// compared with them, and a known version that is clearly worse answers no more than the first samples.
func TestJudgementsAnswerNothingTwice(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	bad := func(w float32) Version {
		return Version{Number: 1, Weights: slices.Repeat([]float32{w}, len(l.Weights()))}
	}
	l.known = []Version{bad(0), bad(1)}
	s.offer(l, 200)
	l.noteDrift(plan.DriftReport{Drifted: true}, time.Second)
	if n := len(l.recalledBy()); n < 2*recallStages[0].samples {
		t.Fatalf("%d samples to compare on", n)
	}

	for i, want := range []int{2 * recallStages[0].samples, recallStages[0].samples} {
		if r := s.steps(l, 1)[0]; r.Work != Judging || r.Inputs != want || r.Published {
			t.Errorf("known version %d: %+v, want %d answers", i, r, want)
		}
	}
}

// TestAWorsePredecessorIsJudgedNoMore shows that a replaced version that is clearly worse costs no further answers.
func TestAWorsePredecessorIsJudgedNoMore(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	for _, weights := range [][]float32{make([]float32, len(l.Weights())), s.weights()} {
		if err := l.publish(weights, evidence{}); err != nil {
			t.Fatal(err)
		}
	}

	s.offer(l, 100)
	l.samples.use(40)
	s.offer(l, 40)
	l.learning, l.sinceJudge = true, judgeEvery

	// Answers that are kept are dropped when the judgement has ended, not before.
	for range seenMost {
		l.serving.seen[new(byte)] = sight{}
	}
	if r := s.steps(l, 1)[0]; r.Work != Judging || l.previous != nil || l.Counts().Reverted != 0 || !slices.Equal(l.Weights(), s.weights()) || len(l.serving.seen) != 0 {
		t.Errorf("%+v, the version before is judged: %v, %+v", r, l.previous != nil, l.Counts())
	}
}

// TestTheSameSeedPublishesTheSame shows that the same seed publishes the same versions.
func TestTheSameSeedPublishesTheSame(t *testing.T) {
	run := func() (float32, Counts) {
		s := openStreet(t)
		l := s.learner(nil)
		s.live(l, 0, 800, dark(), nil)
		return l.Weights()[3], l.Counts()
	}
	w, c := run()
	if again, counted := run(); again != w || counted != c || c.Published == 0 {
		t.Errorf("%v %+v, then %v %+v", w, c, again, counted)
	}
}
