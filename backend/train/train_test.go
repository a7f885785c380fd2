//go:build cgo

package train

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	ortgo "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
)

func needORT(t *testing.T) {
	t.Helper()
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
}

// classifier uses every layer once; detector ends in a grid.
func classifier() Net {
	return Net{Name: "classifier", H: 8, W: 12, Head: Classes{3}, Body: []Layer{
		&Conv{Out: 4, K: 3, Stride: 2},
		&Residual{Body: []Layer{&Conv{Out: 3, K: 3, Stride: 1}, &Conv{Out: 4, K: 1, Stride: 1, Linear: true}}},
		&Conv{Out: 5, K: 3, Stride: 1},
		&Conv{Out: 6, K: 3, Stride: 2},
		&Flatten{}, &Dense{Out: 7}, &Dense{Out: 3, Linear: true}}}
}

func pooled() Net {
	return Net{Name: "pooled", H: 8, W: 8, Head: Classes{3}, Body: []Layer{
		&Conv{Out: 6, K: 3, Stride: 2}, &Flatten{}, &Dense{Out: 3, Linear: true}}}
}

func detector() Net {
	return Net{Name: "detector", H: 16, W: 8, Head: Grid{2}, Body: []Layer{
		&Conv{Out: 4, K: 3, Stride: 2}, &Conv{Out: 6, K: 5, Stride: 2}, &Conv{Out: 7, K: 1, Stride: 1, Linear: true}}}
}

// batch returns random images and targets that are valid for the head.
func batch(n Net, size int, r *rand.Rand) ([]byte, []float32) {
	images := make([]byte, size*int(n.H*n.W)*3)
	for i := range images {
		images[i] = byte(r.IntN(256))
	}
	targets := make([]float32, size*n.TargetLen())
	for b := range size {
		t := targets[b*n.TargetLen() : (b+1)*n.TargetLen()]
		switch h := n.Head.(type) {
		case Classes:
			t[r.IntN(int(h.N))] = 1
		case Grid:
			cells := len(t) / int(h.N+6)
			for c := range cells {
				if r.IntN(3) == 0 {
					t[c] = 1
					t[(1+r.IntN(int(h.N)))*cells+c] = 1
				}
				for k := range 4 {
					t[(1+int(h.N)+k)*cells+c] = float32(2 * r.NormFloat64())
				}
				t[(5+int(h.N))*cells+c] = float32(r.IntN(2))
			}
		}
	}
	return images, targets
}

// gradient returns a function that evaluates loss and gradient at given weights.
func gradient(t *testing.T, n Net, size int) (func(w []float32) (float64, []float32), []param) {
	t.Helper()
	m, params, err := n.buildTraining(int64(size), nil, gradientOnly)
	if err != nil {
		t.Fatal(err)
	}
	run, err := newRunner("", m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { run.close() })
	total := params[len(params)-1].offset + params[len(params)-1].size
	images, targets := batch(n, size, rand.New(rand.NewPCG(1, 1)))
	make1 := func(dims ...int64) *ortgo.Tensor[float32] {
		x, err := newTensor[float32](run, dims...)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	image, err := newTensor[uint8](run, int64(size), n.H, n.W, 3)
	if err != nil {
		t.Fatal(err)
	}
	_, y := n.sketchForward()
	target := make1(append([]int64{int64(size)}, n.Head.target(y)...)...)
	weights, loss, grad := make1(total), make1(1), make1(total)
	copy(image.GetData(), images)
	copy(target.GetData(), targets)
	return func(w []float32) (float64, []float32) {
		copy(weights.GetData(), w)
		if err := run.run(map[string]ortgo.Value{"image": image, "target": target, "weights": weights},
			map[string]ortgo.Value{"loss": loss, "gradient": grad}); err != nil {
			t.Fatal(err)
		}
		return float64(loss.GetData()[0]), append([]float32(nil), grad.GetData()...)
	}, params
}

// TestGradientsAgainstDifferences moves every weight tensor along a random direction and compares the loss's slope
// with the gradient.
func TestGradientsAgainstDifferences(t *testing.T) {
	needORT(t)
	for _, n := range []Net{classifier(), pooled(), detector()} {
		at, params := gradient(t, n, 3)
		w := initialWeights(params, 7)
		_, grad := at(w)
		r := rand.New(rand.NewPCG(2, 2))
		for i, p := range params {
			// Small enough to cross few kinks of ReLUs, large enough for float32.
			const eps = 2e-3
			dir := make([]float64, p.size)
			var norm, want float64
			for k := range dir {
				dir[k] = r.NormFloat64()
				norm += dir[k] * dir[k]
			}
			plus, minus := append([]float32(nil), w...), append([]float32(nil), w...)
			for k := range dir {
				dir[k] /= math.Sqrt(norm)
				j := int(p.offset) + k
				want += dir[k] * float64(grad[j])
				plus[j] += float32(eps * dir[k])
				minus[j] -= float32(eps * dir[k])
			}
			a, _ := at(plus)
			b, _ := at(minus)
			if got := (a - b) / (2 * eps); math.Abs(got-want) > 2e-3+0.02*math.Abs(want) {
				t.Errorf("%s: weights %d %v: slope %.6f, gradient says %.6f", n.Name, i, p.dims, got, want)
			}
		}
	}
}

// TestTrainingLearns overfits one batch and checks that the serving graph agrees.
func TestTrainingLearns(t *testing.T) {
	needORT(t)
	for _, o := range []Optimiser{Adam, Momentum} {
		n := classifier()
		tr, err := New(n, Options{Batch: 8, Seed: 3, Optimiser: o})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		images, targets := batch(n, 8, rand.New(rand.NewPCG(4, 4)))
		rate := map[Optimiser]float64{Adam: 0.01, Momentum: 0.02}[o]
		var first, last float32
		for i := range 150 {
			if last, err = tr.Step(images, targets, rate); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = last
			}
		}
		if last > 0.1*first {
			t.Errorf("optimiser %d: loss went from %v to %v", o, first, last)
		}
		m, err := n.Serving(tr.Weights())
		if err != nil {
			t.Fatal(err)
		}
		if m, err = onnx.Unmarshal(m.Marshal()); err != nil {
			t.Fatal(err)
		}
		p, err := NewPredictor("", m, 8)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		out, err := p.Predict(images)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range targets {
			if want == 1 && out["scores"][i] < 0.5 {
				t.Errorf("optimiser %d: image %d: the true class has probability %v", o, i/3, out["scores"][i])
			}
		}
	}
}

// TestGridOutputsAreItsTargets sets a net's bias so that its raw output is known.
func TestGridOutputsAreItsTargets(t *testing.T) {
	needORT(t)
	n := Net{Name: "grid", H: 2, W: 4, Head: Grid{2}, Body: []Layer{&Conv{Out: 7, K: 1, Stride: 2, Linear: true}}}
	w := make([]float32, n.Cost().Weights)
	bias := w[len(w)-7:]
	copy(bias, []float32{100, 0, 100, 0.5, 0.25, float32(math.Log(0.25)), float32(math.Log(0.5))})
	m, err := n.Serving(w)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPredictor("", m, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	out, err := p.Predict(make([]byte, 2*4*3))
	if err != nil {
		t.Fatal(err)
	}
	// One row of two cells; each box is a quarter as wide and half as high as the image.
	want := []float32{0.125, 0, 0.375, 0.5, 0.625, 0, 0.875, 0.5}
	for i := range want {
		if math.Abs(float64(out["boxes"][i]-want[i])) > 1e-5 {
			t.Errorf("boxes %v, want %v", out["boxes"], want)
			break
		}
	}
	if s := out["scores"]; len(s) != 4 || s[1] < 0.999 || s[0] > 1e-3 {
		t.Errorf("scores %v", s)
	}
}

func TestSameSeedSameWeights(t *testing.T) {
	needORT(t)
	weights := func(seed uint64) []float32 {
		n := pooled()
		tr, err := New(n, Options{Batch: 4, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		defer tr.Close()
		r := rand.New(rand.NewPCG(5, 5))
		for range 5 {
			images, targets := batch(n, 4, r)
			if _, err := tr.Step(images, targets, 0.01); err != nil {
				t.Fatal(err)
			}
		}
		return append([]float32(nil), tr.Weights()...)
	}
	a, b, c := weights(1), weights(1), weights(2)
	different := false
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("weight %d: %v and %v", i, a[i], b[i])
		}
		different = different || a[i] != c[i]
	}
	if !different {
		t.Error("another seed gave the same weights")
	}
}

func TestRefusals(t *testing.T) {
	needORT(t)
	if _, err := New(pooled(), Options{}); err == nil || !strings.Contains(err.Error(), "batch: 0: want 1 to 4096") {
		t.Errorf("batch 0 was accepted: %v", err)
	}
	tr, err := New(pooled(), Options{Batch: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if _, err := tr.Step(nil, nil, 0.1); err == nil || !strings.Contains(err.Error(), "0 image bytes") {
		t.Errorf("an empty batch was accepted: %v", err)
	}
	if _, err := pooled().Serving(nil); err == nil || !strings.Contains(err.Error(), "0 weights: want") {
		t.Errorf("serving without weights: %v", err)
	}
}
