//go:build cgo && !race

package learn

import (
	"slices"
	"testing"
)

// answered returns a function that gives samples the answers that a learner's serving weights give.
func (s *street) answered(l *Learner) func(*Sample) {
	return func(one *Sample) {
		now, err := l.serving.answerSamples([]Sample{*one})
		if err != nil {
			s.t.Fatal(err)
		}
		one.Served = Served{Version: l.Version(), Class: one.Class, Sure: now.sure[0]}
		if !now.right[0] {
			one.Served.Class++ // another class, which one does not matter
		}
	}
}

// TestServedAnswersAreNotGivenAgain: night falls for two learners, one of which is told how the serving weights answered. It publishes the same, and
// its serving weights answer few of them again.
func TestServedAnswersAreNotGivenAgain(t *testing.T) {
	run := func(told bool) (float32, Counts) {
		s := openStreet(t)
		l := s.learner(nil)
		var tell func(*Sample)
		if told {
			tell = s.answered(l)
		}
		s.live(l, 0, 800, dark(), tell)
		return l.Weights()[3], l.Counts()
	}

	w, asked := run(false)
	again, told := run(true)
	t.Logf("asked %+v\ntold %+v", asked.Answered, told.Answered)
	if w != again || asked.Published == 0 || asked.Published != told.Published || asked.Judged != told.Judged || asked.Drifts != told.Drifts {
		t.Errorf("%v %+v, then %v %+v", w, asked, again, told)
	}

	// Those that the version before a publication answered are asked again.
	if asked.Answered.Serving < 3*told.Answered.Serving {
		t.Errorf("answered %+v, and without served answers %+v", told.Answered, asked.Answered)
	}
}

// TestAnswersOfOtherVersionsAreNotServed: what another version answered, or one that is not known, says nothing of the weights that serve now.
func TestAnswersOfOtherVersionsAreNotServed(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	list := s.draw(4, nil)
	for i, version := range []int{0, 1, 2, 7} {
		list[i].Served = Served{Version: version, Class: list[i].Class, Sure: 0.9}
	}
	if got := l.serving.unjudged(list, 4); len(got) != 3 || &got[0].Input[0] == &list[1].Input[0] {
		t.Errorf("%d samples to answer, want all but that of version 1", len(got))
	}

	// The same weights under another number answer anew; a candidate has no number.
	if err := l.publish(slices.Clone(l.Weights()), evidence{}); err != nil {
		t.Fatal(err)
	}
	if right, known := l.serving.isRight(list[2]); !known || !right {
		t.Error("the answer of version 2 is not known while it serves")
	}
	if _, known := l.serving.isRight(list[1]); known {
		t.Error("the answer of version 1 counts as one of version 2")
	}
	candidate := judge{seen: map[*byte]sight{}}
	if got := candidate.unjudged(list, 4); len(got) != 4 {
		t.Errorf("a candidate is to answer %d samples, want 4", len(got))
	}
}

// TestALookComparesSomeFeatures: a period of 600 drift samples has all of its answers compared, as far as they are kept, and the features of
// some, most of which an earlier look has compared as well.
func TestALookComparesSomeFeatures(t *testing.T) {
	s := newSamples(nil, 1)
	seen := map[*byte]bool{}
	for i := range 600 {
		s.turn = 3 // the next is a drift sample
		s.add(Sample{Input: []byte{byte(i)}})
		if i != 46 && i != 93 && i != 187 && i != 374 && i != 599 {
			continue
		}

		list := pick(s.window, s.windowSpread())
		fresh := 0
		for _, one := range list {
			if !seen[&one.Input[0]] {
				fresh++
			}
			seen[&one.Input[0]] = true
		}
		if len(list) > lookedMost || len(list) < min(i+1, lookedMost/2) || fresh > lookedMost {
			t.Errorf("after %d samples %d are compared, %d of them for the first time", i+1, len(list), fresh)
		}
		if last := list[len(list)-1].Input[0]; int(byte(i)-last) > 8 {
			t.Errorf("after %d samples the latest %d are not compared", i+1, byte(i)-last)
		}
	}
	if len(s.window) != windowMax || len(seen) > 300 {
		t.Errorf("%d samples are kept, and %d were answered", len(s.window), len(seen))
	}
}

// TestAHopelessCandidateAnswersLittle: a candidate that is not better by the first samples answers no more of them, and the others stay fresh for
// the next one.
func TestAHopelessCandidateAnswersLittle(t *testing.T) {
	s := openStreet(t)
	l := s.learner(nil)
	s.offer(l, 400)
	l.canTrain()
	l.learning, l.sinceJudge, l.candidate = true, judgeEvery, make([]float32, len(l.candidate))
	fresh := len(l.samples.fresh)
	if r := s.steps(l, 1)[0]; r.Work != Judging || l.Counts().Answered.Candidates != judgedMin || fresh-len(l.samples.fresh) != judgedMin {
		t.Errorf("%+v, of %d samples %d are left, answered %+v", r, fresh, len(l.samples.fresh), l.Counts().Answered)
	}
}

// TestAnswersThatAreNotTrueAreNotBelieved: what samples say of the serving version is compared where a look needs its answers anyway.
func TestAnswersThatAreNotTrueAreNotBelieved(t *testing.T) {
	for _, lie := range []func(*Served){
		nil,
		func(said *Served) { said.Class = 5 - said.Class }, // mostly another class, of six
		func(said *Served) { said.Sure = max(0.01, said.Sure-0.5) },
	} {
		s := openStreet(t)
		l := s.learner(nil)
		tell := s.answered(l)
		for _, one := range s.draw(200, nil) {
			if tell(&one); lie != nil {
				lie(&one.Served)
			}
			if _, err := l.OfferLabelled(one); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(l.serving.unjudged(l.samples.fresh, 1)); n != 0 {
			t.Fatal("served answers are not known")
		}
		if _, err := l.beginTest(); err != nil {
			t.Fatal(err)
		}
		if n := len(l.serving.unjudged(l.samples.fresh, 1)); (n > 0) != (lie != nil) {
			t.Errorf("lies %v: %d of %d answers differed, %d samples to ask", lie != nil, l.serving.differed, l.serving.checked, n)
		}
	}
}
