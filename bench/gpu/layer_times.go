package gpu

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/layers"
)

// tallyKernels counts launches by kernel.
func tallyKernels(choices []executor.Choice) string {
	count := map[string]int{}
	for _, c := range choices {
		count[c.Kernel]++
	}

	var all []string
	for _, name := range slices.Sorted(maps.Keys(count)) {
		all = append(all, fmt.Sprintf("%s×%d", name, count[name]))
	}
	return strings.Join(all, " ")
}

// timeLayers times each layer of a batch by itself.
func (c Config) timeLayers(ctx context.Context, b *rig, n int, choices []executor.Choice) ([]LayerTime, error) {
	plan, err := b.model.Plan(n)
	if err != nil {
		return nil, err
	}

	all := make([]LayerTime, len(plan.Layers))
	for i := range all {
		l := &plan.Layers[i]
		floor := max(float64(l.Bytes)/c.Rates.Memory, float64(l.FLOP)/c.Rates.rateOf(c.Precision)) * 1e6

		var its []executor.Choice
		for _, k := range choices {
			if k.Layer == l.Name && k.Op == l.Op {
				its = append(its, k)
			}
		}
		all[i] = LayerTime{Layer: l.Name, Op: l.Op, Kernels: tallyKernels(its), FloorUS: floor, US: math.Inf(1)}
	}

	// The least of five runs: a layer is too short to be timed by one.
	for range 5 {
		_, err := b.model.Run(ctx, b.stream, n, b.inputs, b.outputs, func(i int, _ *layers.Layer, took time.Duration) executor.Action {
			all[i].US = min(all[i].US, float64(took)/1e3)
			return executor.Continue
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
