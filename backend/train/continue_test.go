//go:build cgo

package train

import (
	"math/rand/v2"
	"strings"
	"testing"

	"downbeat.dev/backend/onnx"
)

// TestTrainingContinuesFromAServingGraph: the weights of a served file, put into a new trainer, continue training
// exactly as in the first one.
func TestTrainingContinuesFromAServingGraph(t *testing.T) {
	needORT(t)
	n := pooled()
	first, err := New(n, Options{Batch: 4, Seed: 1, Optimiser: Momentum})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	m, err := n.Serving(first.Weights())
	if err != nil {
		t.Fatal(err)
	}
	if m, err = onnx.Unmarshal(m.Marshal()); err != nil {
		t.Fatal(err)
	}
	weights, err := n.ReadWeights(m)
	if err != nil {
		t.Fatal(err)
	}
	second, err := New(n, Options{Batch: 4, Seed: 2, Optimiser: Momentum, Weights: weights})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()

	images, targets := batch(n, 4, rand.New(rand.NewPCG(5, 5)))
	step := func(tr *Trainer) []float32 {
		if _, err := tr.Step(images, targets, 0.01); err != nil {
			t.Fatal(err)
		}
		return append([]float32(nil), tr.Weights()...)
	}
	a, b := step(first), step(second)
	step(second)
	if err := second.SetWeights(weights); err != nil {
		t.Fatal(err)
	}
	again := step(second)
	for i := range a {
		if a[i] != b[i] || a[i] != again[i] {
			t.Fatalf("weight %d: %v, continued %v, set back %v", i, a[i], b[i], again[i])
		}
	}
}

// predictTwo returns a model's outputs for two images.
func predictTwo(t *testing.T, m *onnx.Model, images []byte) map[string][]float32 {
	t.Helper()
	p, err := NewPredictor("", m, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	out, err := p.Predict(images)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestProbingAnswersAsServing: the features do not change the answers, and they are the input of the last layer.
func TestProbingAnswersAsServing(t *testing.T) {
	needORT(t)
	for _, c := range []struct {
		net      Net
		features int
	}{{pooled(), 6 * 4 * 4}, {detector(), 6}} {
		weights := make([]float32, c.net.Cost().Weights)
		r := rand.New(rand.NewPCG(6, 6))
		for i := range weights {
			weights[i] = float32(0.1 * r.NormFloat64())
		}
		images, _ := batch(c.net, 2, r)
		answers := func(write func([]float32) (*onnx.Model, error)) map[string][]float32 {
			m, err := write(weights)
			if err != nil {
				t.Fatal(err)
			}
			return predictTwo(t, m, images)
		}
		served, probed := answers(c.net.Serving), answers(c.net.Probing)
		for name, want := range served {
			for i := range want {
				if d := want[i] - probed[name][i]; d > 1e-5 || d < -1e-5 {
					t.Fatalf("%s: %s[%d]: %v, with features %v", c.net.Name, name, i, want[i], probed[name][i])
				}
			}
		}
		if got := len(probed["features"]); got != 2*c.features {
			t.Errorf("%s: %d features of two images, want %d", c.net.Name, got, 2*c.features)
		}
	}
}

func TestForeignWeightsAreRefused(t *testing.T) {
	needORT(t)
	weights := make([]float32, pooled().Cost().Weights)
	m, err := pooled().Serving(weights)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := classifier().ReadWeights(m); err == nil || !strings.Contains(err.Error(), "no graph of this net") {
		t.Errorf("another net's graph: %v", err)
	}
	if _, err := pooled().Probing(weights[1:]); err == nil || !strings.Contains(err.Error(), "weights: want") {
		t.Errorf("probing with too few weights: %v", err)
	}
	if _, err := New(pooled(), Options{Batch: 1, Weights: weights[1:]}); err == nil || !strings.Contains(err.Error(), "weights: ") {
		t.Errorf("too few weights to start from: %v", err)
	}
}
