//go:build cgo

package train

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// withExits is classifier with two exits.
func withExits() Net {
	n := classifier()
	n.Exits = []Exit{
		{After: 1, Body: []Layer{&Conv{Out: 3, K: 3, Stride: 2}, &Flatten{}, &Dense{Out: 3, Linear: true}}},
		{After: 3, Body: []Layer{&Flatten{}, &Dense{Out: 3, Linear: true}}},
	}
	return n
}

// TestExitsLeaveTheBodyAlone: a net learns bit for bit the same as without exits, and a step of only the heads
// changes none of its weights.
func TestExitsLeaveTheBodyAlone(t *testing.T) {
	needORT(t)
	for _, n := range []Net{withExits(), detectorWithExit()} {
		testBodyAlone(t, n)
	}
}

func testBodyAlone(t *testing.T, n Net) {
	body := n
	body.Exits = nil
	images, targets := batch(n, 4, rand.New(rand.NewPCG(3, 3)))
	learn := func(n Net, o Options) []float32 {
		o.Batch, o.Seed = 4, 9
		tr, err := New(n, o)
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		for range 5 {
			if _, err := tr.Step(images, targets, 0.01); err != nil {
				t.Fatal(err)
			}
		}
		return slices.Clone(tr.Weights())
	}

	alone := learn(body, Options{})
	both := learn(n, Options{})
	if !slices.Equal(alone, both[:len(alone)]) {
		t.Error("the body learns something else beside exits")
	}
	start, err := n.ExtendWeights(alone, 5)
	if err != nil {
		t.Fatal(err)
	}
	heads := learn(n, Options{Weights: start, HeadsOnly: true})
	if !slices.Equal(alone, heads[:len(alone)]) {
		t.Error("a step of the heads changes the body")
	}
	if slices.Equal(start[len(alone):], heads[len(alone):]) {
		t.Error("a step of the heads changes no head")
	}
}

// TestExitGradients compares the gradients of the heads' weights with slopes of the loss, and those of the body's
// weights with those of the net without exits.
func TestExitGradients(t *testing.T) {
	needORT(t)
	n := withExits()
	at, params := gradient(t, n, 3)
	w := initialWeights(params, 7)
	_, grad := at(w)

	whole, _ := gradient(t, classifier(), 3)
	body := int(classifier().Cost().Weights)
	if _, want := whole(w[:body]); !slices.Equal(grad[:body], want) {
		t.Error("the gradient by the body's weights is another one beside exits")
	}

	r := rand.New(rand.NewPCG(2, 2))
	for range 40 {
		const eps = 2e-3
		j := body + r.IntN(len(w)-body)
		plus, minus := slices.Clone(w), slices.Clone(w)
		plus[j] += eps
		minus[j] -= eps
		a, _ := at(plus)
		b, _ := at(minus)
		if got := (a - b) / (2 * eps); math.Abs(got-float64(grad[j])) > 3e-3+0.03*math.Abs(got) {
			t.Errorf("weight %d: slope %.6f, gradient says %.6f", j, got, grad[j])
		}
	}
}

// TestExitsAnswerAsNets: the outputs of an exit equal those of a net of only its layers.
func TestExitsAnswerAsNets(t *testing.T) {
	needORT(t)
	for _, n := range []Net{withExits(), detectorWithExit()} {
		sketch, _ := n.sketchForward()
		weights := initialWeights(sketch.params, 4)
		images, _ := batch(n, 2, rand.New(rand.NewPCG(8, 8)))
		answer := func(n Net, weights []float32) map[string][]float32 {
			m, err := n.Serving(weights)
			if err != nil {
				t.Fatal(err)
			}
			return predictTwo(t, m, images)
		}
		all := answer(n, weights)
		parts := n.partsOf()
		for k, e := range n.Exits {
			// The exit's own vector: the body's first layers, then the head.
			alone := n.ExitNet(k + 1)
			head := n
			head.Exits = n.Exits[:k]
			from := int(head.Cost().Weights)
			prefix := Net{Name: n.Name, H: n.H, W: n.W, Body: n.Body[:e.After], Head: n.Head}
			own := append(slices.Clone(weights[:prefix.Cost().Weights]), weights[from:from+int(alone.Cost().Weights-prefix.Cost().Weights)]...)
			for name, want := range answer(alone, own) {
				got := all[name+ExitSuffix(k+1)]
				for i := range want {
					if d := want[i] - got[i]; d > 1e-5 || d < -1e-5 {
						t.Fatalf("%s: exit %d: %s[%d]: %v, alone %v", n.Name, k+1, name, i, got[i], want[i])
					}
				}
			}
		}
		if len(parts) != len(n.Exits)+2 {
			t.Errorf("%d parts", len(parts))
		}
	}
}

func detectorWithExit() Net {
	n := detector()
	n.Exits = []Exit{{After: 2, Body: []Layer{&Conv{Out: 7, K: 1, Stride: 1, Linear: true}}}}
	return n
}

func TestBadExitsAreRefused(t *testing.T) {
	for want, e := range map[string]Exit{
		"want after 1 to 6, and a head":      {After: 7, Body: []Layer{&Flatten{}}},
		"after 2 layers with a head of 0":    {After: 2},
		"answers with [4 0 0]: the net with": {After: 2, Body: []Layer{&Flatten{}, &Dense{Out: 4, Linear: true}}},
	} {
		n := classifier()
		n.Exits = []Exit{e}
		if _, err := n.ExtendWeights(make([]float32, classifier().Cost().Weights), 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}
	if _, err := New(classifier(), Options{Batch: 1, HeadsOnly: true}); err == nil || !strings.Contains(err.Error(), "it has no exits") {
		t.Errorf("heads of a net without exits: %v", err)
	}
}
