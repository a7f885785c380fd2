package executor

import (
	"bytes"
	"errors"
	"fmt"

	"downbeat.dev/cuda/layers"
	"downbeat.dev/cuda/residency"
)

// ErrShape is wrapped if a graph cannot replace another one's weights: shapes differ, or a weight is not a parameter
// but part of a launch.
var ErrShape = errors.New("executor: the graphs differ in more than their parameters' values")

// Weights are other values for a model's parameters, checked to fit it.
type Weights struct {
	model *Model
	graph *layers.Graph
	data  map[string][]byte // by parameter
	seen  []bool            // by batch − 1: the plan's parameters are in data
}

// Planned returns the batch sizes that have been compiled.
func (m *Model) Planned() (batches []int) {
	for i, p := range m.plans {
		if p != nil {
			batches = append(batches, i+1)
		}
	}
	return batches
}

// Weights compiles g for batches, which Planned returned. It only reads immutable state, so batches may be enqueued
// meanwhile. The error wraps ErrShape if g is not the model's graph with other weights.
func (m *Model) Weights(g *layers.Graph, batches []int) (*Weights, error) {
	w := &Weights{model: m, graph: g, data: map[string][]byte{}, seen: make([]bool, m.max)}
	for _, n := range batches {
		if err := w.addBatch(n); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// addBatch compiles the graph for batches of n and compares the plan with the current one.
func (w *Weights) addBatch(n int) error {
	fresh, err := layers.Compile(w.graph, n, w.model.real)
	if err != nil {
		return err
	}
	old, err := layers.Compile(w.model.graph, n, w.model.real) // the current plan already contains addresses
	if err != nil {
		return err
	}

	if err := comparePlans(old, fresh); err != nil {
		return fmt.Errorf("batch of %d: %w", n, err)
	}

	for i := range fresh.Params {
		w.data[fresh.Params[i].Name] = fresh.Params[i].Data
	}
	w.seen[n-1] = true
	return nil
}

// comparePlans returns the difference of two plans other than the values of their parameters.
func comparePlans(a, b *layers.Plan) error {
	if len(a.Layers) != len(b.Layers) || len(a.Params) != len(b.Params) || a.ActivationBytes != b.ActivationBytes {
		return fmt.Errorf("%d layers and %d parameters, the model has %d and %d: %w", len(b.Layers), len(b.Params), len(a.Layers), len(a.Params), ErrShape)
	}

	for i := range a.Params {
		x, y := &a.Params[i], &b.Params[i]
		if x.Name != y.Name || len(x.Data) != len(y.Data) {
			return fmt.Errorf("parameter %q of %d bytes, the model has %q of %d: %w", y.Name, len(y.Data), x.Name, len(x.Data), ErrShape)
		}
	}

	for i := range a.Layers {
		x, y := a.Layers[i].Steps, b.Layers[i].Steps
		if len(x) != len(y) {
			return fmt.Errorf("layer %q: %w", b.Layers[i].Name, ErrShape)
		}
		for k := range x {
			// A launch's parameters contain shapes, and any weight that was folded into it.
			if x[k].Kernel != y[k].Kernel || !bytes.Equal(x[k].Params, y[k].Params) {
				return fmt.Errorf("layer %q: %w", b.Layers[i].Name, ErrShape)
			}
		}
	}
	return nil
}

// Footprint returns the bytes of the model's parameters, and of its largest batch's activations.
func (m *Model) Footprint() (parameters, activations int64) {
	seen := map[residency.ID]bool{}
	for _, at := range m.params {
		if !seen[at.content] {
			seen[at.content] = true
			parameters += m.r.store.Bytes(at.content)
		}
	}

	if p := m.plans[m.max-1]; p != nil {
		activations = p.ActivationBytes
	}
	return parameters, activations
}
