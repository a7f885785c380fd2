package models

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/train"
)

// The largest variant of each family has early exits, and so has every vehicle network: the application of a detector,
// a vehicle and an activity network has 3·3·9 = 81 structures. An exit is a model of its own that shares its network's
// first layers.

const (
	exitSteps = 1000 // for the heads, after the whole network's
	exitRate  = 2e-3
)

// exitsOf returns the exits of a recipe's network, none for most small ones.
func exitsOf(n train.Net, r Recipe) []train.Exit {
	switch {
	case r.Family == "detector" && r.Variant == "l":
		last := func() train.Layer { return &train.Conv{Out: kinds + 5, K: 1, Stride: 1, Linear: true} }
		return []train.Exit{{After: 4, Body: []train.Layer{conv(48, 1), last()}}, {After: 5, Body: []train.Layer{conv(48, 1), last()}}}

	// Early features are not ready to be classified, so a head has one convolution before the deciding layer.
	case r.Variant == "l":
		head := func() []train.Layer { return append([]train.Layer{conv(32, 2)}, decidingLayers(n)...) }
		return []train.Exit{{After: 2, Body: head()}, {After: 4, Body: head()}}

	// In a smaller network that convolution would cost more than the layers that it saves.
	case r.Family == "vehicle":
		return []train.Exit{{After: 2, Body: decidingLayers(n)}, {After: 3, Body: decidingLayers(n)}}
	}
	return nil
}

// decidingLayers returns the end of a classifier's head.
func decidingLayers(n train.Net) []train.Layer {
	return []train.Layer{&train.Flatten{}, &train.Dense{Out: n.Head.(train.Classes).N, Linear: true}}
}

// ExitName returns the repository's name of exit k, from 1, of the recipe's model.
func (r Recipe) ExitName(k int) string { return fmt.Sprintf("%s-exit%d", r.Name(), k) }

// FindExit returns the recipe of the model of that name, and the number of its exit, or 0 for the recipe's model
// itself.
func FindExit(name string) (r Recipe, k int, ok bool) {
	for _, r := range Recipes() {
		if r.Name() == name {
			return r, 0, true
		}
		for k := range r.Structure().Exits {
			if r.ExitName(k+1) == name {
				return r, k + 1, true
			}
		}
	}
	return Recipe{}, 0, false
}

// trainExits trains the heads of the exits of a trained network, whose weights stay unchanged, and returns the
// weights of both.
func (r Recipe) trainExits(ctx context.Context, o Options, body []float32) ([]float32, error) {
	net := r.Structure()
	if len(net.Exits) == 0 {
		return body, nil
	}

	weights, err := net.ExtendWeights(body, o.Seed)
	if err != nil {
		return nil, err
	}
	t, err := train.New(net, train.Options{Batch: r.Batch, Weights: weights, Library: o.Library, HeadsOnly: true})
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return r.runSteps(ctx, o, t, lesson{what: "exits", steps: max(int(exitSteps*o.Effort), 1), first: int(float64(r.Steps)*o.Effort) + 1, rate: exitRate})
}

// exitOrName returns ExitName, or for k = 0 the model's own name.
func (r Recipe) exitOrName(k int) string {
	if k == 0 {
		return r.Name()
	}
	return r.ExitName(k)
}

// addExits trains heads for the recipe's model in the repository, and writes the file again with them. The model's
// own weights stay unchanged.
func (r Recipe) addExits(ctx context.Context, o Options) error {
	start := time.Now()
	file, err := onnx.Read(filepath.Join(o.Dir, r.Name(), "1", "model.onnx"))
	if err != nil {
		return err
	}
	body, err := r.net().ReadWeights(file)
	if err != nil {
		return err
	}
	// The body's weights stay unchanged, so the model's measured accuracy still holds.
	weights, err := r.trainExits(ctx, o, body)
	if err != nil {
		return err
	}
	return r.writeModel(ctx, o, weights, start)
}
