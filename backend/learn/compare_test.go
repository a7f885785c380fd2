//go:build cgo && !race

package learn

import "testing"

// TestCompareFirst shows that the serving weights and the learner's first weights answer the same latest samples,
// each of them once.
func TestCompareFirst(t *testing.T) {
	s := openStreet(t)
	l := s.learner(func(o *Options) { o.Brief = true })
	offer := func(n int) (list []Sample) {
		list = s.draw(n, nil)
		for _, one := range list {
			if _, err := l.OfferLabelled(one); err != nil {
				t.Fatal(err)
			}
		}
		return list[max(0, n-comparedMost):]
	}
	compare := func(want Compared) {
		t.Helper()
		l.BeginComparison()
		if idle := l.Idle(); idle != (want == Compared{}) {
			t.Errorf("idle: %v, want a comparison %+v", idle, want)
		}
		reports := s.steps(l, 100)
		if c, _ := l.takeCompared(); c != want || !l.Idle() {
			t.Errorf("%+v after %d steps, want %+v", c, len(reports), want)
		}
		for _, r := range reports {
			if r.Work != Judging || r.Inputs > l.options.Batch {
				t.Errorf("a step %+v, want a batch of answers", r)
			}
		}
	}
	share := func(weights []float32, list []Sample) float64 {
		x, err := Accuracy(l.options.Net, weights, list, "")
		if err != nil {
			t.Fatal(err)
		}
		return x
	}

	// Too few samples give no result and wait for more.
	offer(comparedLeast - 1)
	compare(Compared{})
	list := offer(comparedMost + 8)
	first := share(s.weights(), list)
	compare(Compared{Version: 1, Samples: comparedMost, Serving: first, First: first})
	compare(Compared{})

	// Useless weights begin to serve. The first weights are still those with which learning began.
	nothing := make([]float32, len(s.weights()))
	if err := l.publish(nothing, evidence{}); err != nil {
		t.Fatal(err)
	}
	list = offer(comparedMost)
	compare(Compared{Version: 2, Samples: comparedMost, Serving: share(nothing, list), First: share(s.weights(), list)})
	if before, after := share(s.weights(), list), share(nothing, list); before <= after {
		t.Errorf("weights that know nothing answer %v rightly, those of the model %v: the test shows nothing", after, before)
	}
	if x := l.standing(); x.First != 1 || x.Version != 2 || x.Published != 1 || x.Samples != 2*comparedMost+8+comparedLeast-1 {
		t.Errorf("standing %+v", x)
	}
}
