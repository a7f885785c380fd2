//go:build cgo && !race

package learn

import (
	"encoding/binary"
	"math"
	"testing"

	"downbeat.dev/core/wire"
)

// TestProbability is the class's score, which is a probability, and 0 where there is none.
func TestProbability(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		scores []float32
		class  int
		want   float64
	}{
		{[]float32{0.25, 0.75}, 1, 0.75}, {[]float32{1, 0}, 0, 1}, {[]float32{1, 0}, 1, 0}, {[]float32{2, -1}, 0, 0}, {[]float32{2, -1}, 1, 0},
		{[]float32{nan, 1}, 0, 0}, {[]float32{inf, 1}, 0, 0}, {[]float32{0.5, 0.5}, 2, 0}, {[]float32{1}, -1, 0}, {nil, 0, 0},
	} {
		if got := probability(c.scores, c.class); math.Abs(float64(got)-c.want) > 1e-6 {
			t.Errorf("class %d of %v: %v, want %v", c.class, c.scores, got, c.want)
		}
	}
}

// TestProbabilitiesOutsideAreRefused: what a sample says of the probability of its class must be one.
func TestProbabilitiesOutsideAreRefused(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	for _, p := range []float32{float32(math.NaN()), -0.1, 1.1, float32(math.Inf(1))} {
		one := s.draw(1, nil)[0]
		one.Served = Served{Version: 1, Class: one.Class, Sure: p}
		if kept, err := l.OfferLabelled(one); kept || err == nil {
			t.Errorf("probability %v: kept %v, %v", p, kept, err)
		}
	}
}

// TestACandidateMustBeSurerAndNotWorse: neither probabilities alone nor some more right answers alone publish a candidate,
// nor both if its latest answers are worse. Many more right answers do.
func TestACandidateMustBeSurerAndNotWorse(t *testing.T) {
	evidenceOf := func(plus, minus, surer float64) evidence {
		return evidence{judged: 200, plus: plus, minus: minus, surer: surer, surerSquare: 1}
	}
	l := &Learner{}
	good, bad := evidenceOf(12, 6, 3), evidenceOf(6, 12, 3)
	for _, c := range []struct {
		name     string
		all, now evidence
		want     bool
	}{
		{"surer, and right more often", good, good, true},
		{"surer, and wrong more often", bad, good, false},
		{"right more often, and as sure", evidenceOf(12, 6, 1), good, false},
		{"right more often, and less sure", evidenceOf(12, 6, -3), good, false},
		{"right much more often, and less sure", evidenceOf(20, 6, -3), good, true},
		{"worse by the latest answers", good, bad, false},
		{"nothing known", evidence{}, evidence{}, false},
	} {
		if got := l.passes(&c.all, &c.now); got != c.want {
			t.Errorf("%s: passes %v, want %v", c.name, got, c.want)
		}
	}
	if l.held = true; l.passes(&good, &good) {
		t.Error("a candidate passes after a rollback")
	}
}

// TestSureEvidence: earlier probabilities count less, as earlier answers do, and the same evidence speaks against the
// other weights.
func TestSureEvidence(t *testing.T) {
	var all, now evidence
	for range 10 {
		now.add([]bool{false}, []bool{true})
		now.addSure(0.5)
	}
	all.follow(now)
	if z := all.sureErrors(); math.Abs(z-math.Sqrt(10)) > 1e-9 {
		t.Errorf("%v standard errors of ten equal differences, want √10", z)
	}
	all.follow(evidence{})
	if math.Abs(all.surer-evidenceKept*5) > 1e-9 || math.Abs(all.surerSquare-evidenceKept*2.5) > 1e-9 {
		t.Errorf("%+v after a judgement without samples", all)
	}
	if back := all.reversed(); back.sureErrors() != -all.sureErrors() || back.gain() != -all.gain() {
		t.Errorf("%+v reversed is %+v", all, back)
	}
}

// TestAnswersWithoutProbabilityAreAskedForJudgements: an earlier client names its answer alone. That serves the alarm
// and the looks, and a judgement asks again.
func TestAnswersWithoutProbabilityAreAskedForJudgements(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	list := s.draw(4, nil)
	tell := s.answered(l)
	for i := range list {
		if tell(&list[i]); i > 0 {
			list[i].Served.Sure = 0
		}
	}
	if n := len(l.serving.unanswered(list, 4)); n != 0 {
		t.Errorf("%d samples to answer, want none", n)
	}
	if n := len(l.serving.unjudged(list, 4)); n != 3 {
		t.Errorf("%d samples to answer for a judgement, want 3", n)
	}
}

// TestATeachersLabelMakesTheProbabilityKnown: the scores of a sampled input wait until its class is known.
func TestATeachersLabelMakesTheProbabilityKnown(t *testing.T) {
	s := openStreet(t)
	l := s.learner(func(o *Options) {
		o.Teach = func(_ []byte, n int) ([]int, error) {
			classes := make([]int, n)
			classes[0] = 1
			return classes, nil
		}
	})
	for _, one := range s.draw(labelBatch, nil) {
		one.Served, one.scores = Served{Version: 1, Class: 1}, []float32{0.25, 0.75, 0, 0, 0, 0}
		if _, err := l.offerSampled(one); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.steps(l, 1)[0]; r.Work != Labelling || r.Unlabelled != nil {
		t.Fatalf("%+v", r)
	}
	for i, one := range l.samples.fresh {
		want := 0.25
		if one.Class == 1 {
			want = 0.75
		}
		if math.Abs(float64(one.Served.Sure)-want) > 1e-6 || one.Served.Version != 1 || one.scores != nil {
			t.Errorf("sample %d of class %d: %+v, scores %v", i, one.Class, one.Served, one.scores)
		}
	}
}

// TestLessonsWithProbabilities reads heads of both lengths.
func TestLessonsWithProbabilities(t *testing.T) {
	about := TrainableModel{Height: 2, Width: 2, Classes: 3}
	pack := func(head int, sure uint16) (packed []byte) {
		for class := range uint32(3) {
			packed = binary.LittleEndian.AppendUint32(packed, class|(2-class)<<16) // class 2 has no answer
			if head == wire.SureHead {
				packed = binary.LittleEndian.AppendUint16(packed, sure)
			}
			packed = append(packed, make([]byte, 12)...)
			packed[len(packed)-1] = byte(class)
		}
		return packed
	}

	for _, c := range []struct {
		head int
		sure uint16
		want float64
	}{{wire.LessonHead, 0, 0}, {wire.SureHead, 0, 0}, {wire.SureHead, wire.PackProbability(0.75), 0.75}} {
		list, err := about.unpackLesson("7", pack(c.head, c.sure))
		if err != nil || len(list) != 3 {
			t.Fatalf("%v, %d samples", err, len(list))
		}
		for i, one := range list {
			said := one.Served
			if one.Class != i || one.Input[11] != byte(i) || i == 2 && said != (Served{}) {
				t.Errorf("sample %d: %+v", i, one)
			}
			if i < 2 && (said.Version != 7 || said.Class != 1-i || math.Abs(float64(said.Sure)-c.want) > 1e-4) {
				t.Errorf("head %d, sample %d: %+v, want class %d and %v", c.head, i, said, 1-i, c.want)
			}
		}
	}
	if _, err := about.unpackLesson("7", pack(wire.SureHead, 1)[1:]); err == nil {
		t.Error("a part of a sample was read")
	}
}
