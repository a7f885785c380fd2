//go:build !cgo

package train

import (
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
)

// Trainer is a stub in a binary built without cgo.
type Trainer struct{}

// Predictor is a stub in a binary built without cgo.
type Predictor struct{}

// New always fails with ort.ErrMissing.
func New(_ Net, o Options) (*Trainer, error) {
	_, err := ort.Open(o.Library)
	return nil, err
}

// NewPredictor always fails with ort.ErrMissing.
func NewPredictor(library string, _ *onnx.Model, _ int) (*Predictor, error) {
	_, err := ort.Open(library)
	return nil, err
}

// Begin always fails.
func (t *Trainer) Begin([]byte, []float32, float64) error { return ort.ErrMissing }

// Advance always fails.
func (t *Trainer) Advance(time.Duration) (bool, float32, error) { return false, 0, ort.ErrMissing }

// Step always fails.
func (t *Trainer) Step([]byte, []float32, float64) (float32, error) { return 0, ort.ErrMissing }

// Weights returns nil.
func (t *Trainer) Weights() []float32 { return nil }

// SetWeights always fails.
func (t *Trainer) SetWeights([]float32) error { return ort.ErrMissing }

// Close does nothing.
func (t *Trainer) Close() error { return nil }

// Predict always fails.
func (p *Predictor) Predict([]byte) (map[string][]float32, error) { return nil, ort.ErrMissing }

// Close does nothing.
func (p *Predictor) Close() error { return nil }
