package sim

import (
	"testing"
	"time"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/profile"
)

// size is a variant as lines by kind: ℓ(b) = alpha·b + beta.
type size struct {
	name     string
	accuracy float64
	lines    [][2]time.Duration
}

func us(n float64) time.Duration { return time.Duration(n * 1e3) }

// drawFamily returns a family as World models.
func drawFamily(t *testing.T, name string, slo Duration, sizes ...size) Model {
	m := Model{Name: name, SLO: slo}
	for _, s := range sizes {
		v := Variant{Name: s.name, Accuracy: s.accuracy}
		for _, l := range s.lines {
			p, err := profile.Linear(l[0], l[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			v.Profiles = append(v.Profiles, p)
		}
		m.Variants = append(m.Variants, v)
	}
	return m
}

// answers counts how a World's requests were answered.
type answers struct {
	requests, accuracy []float64 // by second of the batch's start: requests, and the sum of their accuracies
	byKind             [2]int
}

func watchAnswers(w *World) *answers {
	a := &answers{}
	w.Answered = func(gpu, model, variant int32, start, finish Time, requests []int32) {
		second := int(start / 1e9)
		for len(a.requests) <= second {
			a.requests, a.accuracy = append(a.requests, 0), append(a.accuracy, 0)
		}
		a.requests[second] += float64(len(requests))
		a.accuracy[second] += w.Models[model].Variants[variant].Accuracy * float64(len(requests))
		a.byKind[w.Kind(gpu)] += len(requests)
	}
	return a
}

// mean returns the mean accuracy of the answers of some seconds.
func (a *answers) mean(from, to int) float64 {
	requests, accuracy := 0.0, 0.0
	for i := from; i < min(to, len(a.requests)); i++ {
		requests, accuracy = requests+a.requests[i], accuracy+a.accuracy[i]
	}
	return accuracy / requests
}

// sizes returns three variants. The lightest can serve seven times the load of the heaviest.
func sizes(slowness ...float64) (all []size) {
	for _, s := range []struct{ accuracy, alpha, beta float64 }{{0.80, 200, 1000}, {0.90, 500, 2500}, {0.95, 1053, 5072}} {
		v := size{accuracy: s.accuracy}
		for _, f := range slowness {
			v.lines = append(v.lines, [2]time.Duration{us(f * s.alpha), us(f * s.beta)})
		}
		all = append(all, v)
	}
	return all
}

// TestAccuracyFallsBeforeRequestsDrop: eight GPUs serve 6,000 requests/s with the most accurate variant and some
// 34,000 with the lightest. In between nothing is dropped, and accuracy falls no further than necessary (UNIFIED
// U10). Accuracy is the mean of four seeds, since that of one varies by as much as changes of the program do.
func TestAccuracyFallsBeforeRequestsDrop(t *testing.T) {
	family := drawFamily(t, "vehicle", 50e6, sizes(1)...)
	for _, c := range []struct{ rate, accuracy float64 }{
		{1000, 0.95}, {5000, 0.9499}, {6000, 0.948}, {8000, 0.928}, {12000, 0.905}, {15000, 0.888}, {20000, 0.85}, {30000, 0.81},
	} {
		worst, accuracy := 0.0, 0.0
		for seed := range uint64(fewSeeds) {
			w := &World{Models: []Model{family}, GPUs: 8, Arrivals: arrivals.NewUnit(1+seed, arrivals.Poisson, arrivals.Even(1), c.rate*5).At(c.rate, 5e9, nil)}
			a := watchAnswers(w)
			r := w.Run(NewDownbeat(w))
			worst = max(worst, float64(r.Bad[0])/float64(r.Total[0]))
			accuracy += a.mean(0, 5) / fewSeeds
		}

		t.Logf("%6.0f requests/s: at most %.5f bad, accuracy %.4f", c.rate, worst, accuracy)
		if worst > 0.0005 || accuracy < c.accuracy-1e-9 {
			t.Errorf("%.0f requests/s: %.5f bad and an accuracy of %.4f, want at most 0.0005 and at least %.4f", c.rate, worst, accuracy, c.accuracy)
		}
	}
}

// fewSeeds is the number of seeds whose mean accuracy is taken where that of one varies as much as what is tested.
const fewSeeds = 4

// TestAccuracyComesBack: a load five times as high for some seconds drops less than half a percent in its first
// second and nothing afterwards. When it is over, answers are as accurate as before.
func TestAccuracyComesBack(t *testing.T) {
	w := &World{Models: []Model{drawFamily(t, "vehicle", 50e6, sizes(1)...)}, GPUs: 8}
	add := func(rate float64, from, span time.Duration) {
		for _, a := range arrivals.NewUnit(uint64(rate), arrivals.Poisson, arrivals.Even(1), rate*float64(span)/1e9).At(rate, span, nil) {
			w.Arrivals = append(w.Arrivals, arrivals.Arrival{At: from + a.At})
		}
	}
	add(4000, 0, 4e9)
	add(20000, 4e9, 4e9)
	add(4000, 8e9, 6e9)
	a := watchAnswers(w)
	bad := make([]int, 20)
	w.Ended = func(r int32, o Outcome, at Time) {
		if o != Served {
			bad[w.Arrivals[r].At/1e9]++
		}
	}
	w.Run(NewDownbeat(w))

	t.Logf("accuracy %.4f, under load %.4f, afterwards %.4f; bad by second %v", a.mean(1, 4), a.mean(5, 8), a.mean(12, 14), bad)
	for second, n := range bad {
		if second != 4 && n > 0 || n > 100 {
			t.Errorf("second %d: %d of its requests were not served in time", second, n)
		}
	}
	if a.mean(1, 4) < 0.95-1e-9 || a.mean(12, 14) < 0.95-1e-9 || a.mean(5, 8) < 0.845 {
		t.Errorf("accuracy %.4f, under load %.4f, afterwards %.4f; want 0.95, at least 0.845, and 0.95", a.mean(1, 4), a.mean(5, 8), a.mean(12, 14))
	}
}

// TestSlowKindHelpsWhereItIsWanted: GPUs that are three to six times as slow get nothing while a fast one is free,
// little while the fast ones suffice, and take their part when they do not. Where they are short, accuracy is the mean of
// 16 seeds, since those vary by more than a hundredth.
func TestSlowKindHelpsWhereItIsWanted(t *testing.T) {
	var models []Model
	for i := range 4 {
		models = append(models, drawFamily(t, "f", 100e6, sizes(1, 3+float64(i))...))
	}
	for _, c := range []struct {
		rate, accuracy, least, most float64
		seeds                       uint64
	}{{500, 0.95, 0, 0, 1}, {2000, 0.95, 0, 0.2, 1}, {8000, 0.915, 0.2, 1, 4}, {15000, 0.855, 0.3, 1, 16}} {
		bad, accuracy, slow := 0.0, 0.0, 0.0 // the worst; means
		for seed := range c.seeds {
			w := &World{Models: models, GPUs: 12, Kinds: []uint8{0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
				Arrivals: arrivals.NewUnit(1+seed, arrivals.Poisson, arrivals.Even(4), c.rate*5).At(c.rate, 5e9, nil)}
			a := watchAnswers(w)
			r := w.Run(NewDownbeat(w))

			all := float64(len(w.Arrivals))
			bad = max(bad, float64(r.Bad[0]+r.Bad[1]+r.Bad[2]+r.Bad[3])/all)
			accuracy += a.mean(0, 5) / float64(c.seeds)
			slow += float64(a.byKind[1]) / all / float64(c.seeds)
		}

		t.Logf("%6.0f requests/s: at most %.5f bad, accuracy %.4f, %.3f of them on the slow kind", c.rate, bad, accuracy, slow)
		if bad > 0.001 || accuracy < c.accuracy-1e-9 || slow < c.least || slow > c.most {
			t.Errorf("%.0f requests/s: %.5f bad, accuracy %.4f, %.3f on the slow kind; want accuracy %.4f and %.3f to %.3f", c.rate, bad, accuracy, slow, c.accuracy, c.least, c.most)
		}
	}
}
