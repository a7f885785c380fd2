package device

import (
	"fmt"
	"slices"

	"downbeat.dev/core/repo"
)

// CheckUpdate returns the reason why weights cannot replace d's in place: the error wraps ErrShape. It compares only
// the configurations, not the graphs.
func (d *Model) CheckUpdate(weights *repo.Model) error {
	switch have := d.Source; {
	case weights.Platform != have.Platform:
		return fmt.Errorf("platform %s, the loaded one has %s: %w", weights.Platform, have.Platform, ErrShape)
	case weights.BatchMax < d.BatchMax || weights.Batched != d.Batched:
		return fmt.Errorf("batches up to %d, the loaded one runs up to %d: %w", weights.BatchMax, d.BatchMax, ErrShape)
	case len(weights.Inputs) != len(have.Inputs) || len(weights.Outputs) != len(have.Outputs):
		return fmt.Errorf("%d inputs and %d outputs, the loaded one has %d and %d: %w",
			len(weights.Inputs), len(weights.Outputs), len(have.Inputs), len(have.Outputs), ErrShape)
	}

	// The layout of rows is fixed: each tensor must keep its place and its shape.
	for i, t := range d.Source.Inputs {
		if w := weights.Inputs[i]; w.Name != t.Name || w.Datatype != t.Datatype || !slices.Equal(weights.GraphInput(i), d.Source.GraphInput(i)) {
			return fmt.Errorf("input %q %s %v, the loaded one has %q %s %v: %w", w.Name, w.Datatype, w.Shape, t.Name, t.Datatype, t.Shape, ErrShape)
		}
	}
	for i, t := range d.Source.Outputs {
		if w := weights.Outputs[i]; w.Name != t.Name || w.Datatype != t.Datatype || !slices.Equal(weights.GraphOutput(i), d.Source.GraphOutput(i)) {
			return fmt.Errorf("output %q %s %v, the loaded one has %q %s %v: %w", w.Name, w.Datatype, w.Shape, t.Name, t.Datatype, t.Shape, ErrShape)
		}
	}
	return nil
}
