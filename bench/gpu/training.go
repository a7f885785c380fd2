package gpu

import "downbeat.dev/backend/train"

// Training returns a case for each kind of training graph: forward pass, gradients and the optimiser's step. The weights
// are an input, so that a step on the device replaces them without another copy.
func Training() ([]Case, error) {
	classifier := train.Net{Name: "training step of a classifier", H: 12, W: 8, Head: train.Classes{N: 3}, Body: []train.Layer{
		&train.Conv{Out: 6, K: 3, Stride: 2},
		&train.Residual{Body: []train.Layer{&train.Conv{Out: 6, K: 3, Stride: 1}, &train.Conv{Out: 6, K: 3, Stride: 1, Linear: true}}},
		&train.Conv{Out: 9, K: 3, Stride: 2}, &train.Flatten{}, &train.Dense{Out: 3},
	}}
	detector := train.Net{Name: "training step of a detector", H: 16, W: 8, Head: train.Grid{N: 2}, Body: []train.Layer{
		&train.Conv{Out: 5, K: 5, Stride: 2}, &train.Conv{Out: 6, K: 3, Stride: 2}, &train.Conv{Out: 7, K: 1, Stride: 1, Linear: true},
	}}

	var all []Case
	for _, n := range []train.Net{classifier, detector} {
		m, _, err := n.Training(train.Options{Batch: 4, Optimiser: train.Momentum})
		if err != nil {
			return nil, err
		}
		all = append(all, Case{Name: n.Name, Model: m, Batches: []int{1}, IntMax: 256})
	}
	return all, nil
}
