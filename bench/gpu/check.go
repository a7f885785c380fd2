package gpu

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/layers"
)

// ErrorMax returns the largest accepted relative error of a result: 1e-3 for the worst element in fp32, and for the
// norm 2e-2 in fp16 and 3e-2 in bf16, where one rounding of one element may already be 4e-3. The scores of the
// detector's first early exit, differences of large terms, reach 2.6e-2 on the emulated device.
func ErrorMax(p layers.Precision) float64 {
	switch p {
	case layers.FP32:
		return 1e-3
	case layers.BF16:
		return 3e-2
	}
	return 2e-2
}

// Checked is the result of one case at one batch size.
type Checked struct {
	Case      string  `json:"case"`
	Precision string  `json:"precision"`
	Batch     int     `json:"batch"`
	ByLayer   bool    `json:"by_layer"` // run layer by layer; else as one submission
	Error     float64 `json:"error"`    // relative: see ErrorMax
	Passed    bool    `json:"passed"`
	Reason    string  `json:"reason,omitempty"`
}

// CheckConfig is the configuration of Check.
type CheckConfig struct {
	Library    string // ONNX Runtime; "" for the usual places
	Seed       uint64 // of the random inputs
	Capture    bool   // run as captured graphs
	Timeout    time.Duration
	Precisions []layers.Precision // fp32 if empty
	Prefer     string             // this and the next two: see executor.Config
	Tune       bool
	Libraries  string
}

// Emulated opens an emulated device that runs the kernels in Go.
func Emulated() (*cuda.Device, error) {
	return cuda.OpenEmulated(cuda.Emulation{Virtual: true, MemoryBytes: 4 << 30, PinnedBytesMax: 1 << 30, Kernels: kernels.Reference()})
}

// Check compares every case with ONNX Runtime's CPU results, with new random inputs and poisoned outputs, and calls
// report for each. The error contains the number of failures.
func Check(ctx context.Context, dev *cuda.Device, c CheckConfig, cases []Case, report func(Checked)) error {
	free, _, err := dev.MemoryInfo()
	if err != nil {
		return err
	}

	r, err := executor.Open(dev, executor.Config{DeviceBytes: min(free/2, 8<<30), PinnedBytes: 64 << 20, Capture: c.Capture, Prefer: c.Prefer, Tune: c.Tune, Libraries: c.Libraries})
	if err != nil {
		return err
	}
	defer r.Close()

	failed := 0
	for i := range cases {
		err := c.checkCase(ctx, dev, r, &cases[i], func(k Checked) {
			if !k.Passed {
				failed++
			}
			report(k)
		})

		if ctx.Err() != nil {
			return fmt.Errorf("interrupted in case %d of %d, %q; %d checks before it failed: %w", i+1, len(cases), cases[i].Name, failed, ctx.Err())
		}
		if err != nil {
			failed++
			report(Checked{Case: cases[i].Name, Reason: err.Error()})
		}

		// After an error of the device, later results mean nothing.
		if dev.Err() != nil {
			return fmt.Errorf("check %q: %w", cases[i].Name, dev.Err())
		}
	}

	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

func (c CheckConfig) checkCase(ctx context.Context, dev *cuda.Device, r *executor.Runtime, k *Case, report func(Checked)) (err error) {
	// Open the reference once per case: it serves every precision and batch.
	ref, err := openReference(c.Library, k.Model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.closeReference()) }()

	precisions := c.Precisions
	if len(precisions) == 0 {
		precisions = []layers.Precision{layers.FP32}
	}
	for _, p := range precisions {
		if err := c.checkPrecision(ctx, dev, r, ref, k, p, report); err != nil {
			return fmt.Errorf("%v: %w", p, err)
		}
	}
	return nil
}

// checkPrecision checks one case in one precision.
func (c CheckConfig) checkPrecision(ctx context.Context, dev *cuda.Device, r *executor.Runtime, ref *reference, k *Case, p layers.Precision, report func(Checked)) (err error) {
	b, err := openRig(dev, r, k.Model, k.Batches[len(k.Batches)-1], p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.closeRig()) }()

	rng := rand.New(rand.NewPCG(c.Seed, 77))

	ways := []bool{false, true}
	if p != layers.FP32 {
		ways = ways[:1] // layer by layer is the same for all
	}

	for _, n := range k.Batches {
		for _, byLayer := range ways {
			limit, cancel := context.WithTimeout(ctx, c.Timeout)
			out, err := c.compareOutputs(limit, b, ref, rng, k, Checked{Case: k.Name, Precision: p.String(), Batch: n, ByLayer: byLayer, Passed: true}, ErrorMax(p))
			cancel()
			if err != nil {
				return err
			}
			report(out)
		}
	}
	return nil
}

// draws is the number of random inputs by which a half-precision result is judged together: the error of one small
// batch varies by a third, and the limit should judge the arithmetic, not the draw.
const draws = 4

func (c CheckConfig) compareOutputs(ctx context.Context, b *rig, ref *reference, rng *rand.Rand, k *Case, out Checked, most float64) (Checked, error) {
	half, n := b.plan.Precision != layers.FP32, 1
	if half {
		n = draws
	}

	var got, want [][]float64 // by output, of all draws
	for range n {
		inputs := b.randomInputs(rng, out.Batch, k.IntMax)
		w, err := ref.runReference(out.Batch, inputs)
		if err != nil {
			return out, err
		}

		g, err := b.runBatch(ctx, out.Batch, out.ByLayer)
		if err != nil {
			return out, fmt.Errorf("batch of %d: %w", out.Batch, err)
		}
		got, want = joinValues(got, g), joinValues(want, w)
	}

	for i := range want {
		d, norm, err := distanceTo(got[i], want[i])
		if err != nil {
			return out, fmt.Errorf("output %d: %w", i, err)
		}

		// Judge half precision by the norm of the error over several draws: elements near 0 have no meaningful
		// relative error.
		if half {
			d = norm
		}
		if !(d <= most) { // also true for NaN
			out.Passed, out.Reason = false, fmt.Sprintf("output %d: relative error %.3g, at most %.0e", i, d, most)
		}
		out.Error = max(out.Error, d)
	}
	return out, nil
}

// joinValues appends each output's values to those of earlier draws.
func joinValues(all, more [][]float64) [][]float64 {
	if all == nil {
		return more
	}
	for i := range all {
		all[i] = append(all[i], more[i]...)
	}
	return all
}
