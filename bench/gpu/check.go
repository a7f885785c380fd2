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
)

// ErrorMax is the largest relative error of a result in fp32.
const ErrorMax = 1e-3

// Checked is the outcome of one case at one batch size.
type Checked struct {
	Case    string  `json:"case"`
	Batch   int     `json:"batch"`
	ByLayer bool    `json:"by_layer"` // run layer by layer; else as one submission
	Error   float64 `json:"error"`    // the largest, relative
	Passed  bool    `json:"passed"`
	Reason  string  `json:"reason,omitempty"`
}

// CheckConfig is what Check needs.
type CheckConfig struct {
	Library string // ONNX Runtime; "" for the usual places
	Seed    uint64 // of the random inputs
	Capture bool   // run as captured graphs
	Timeout time.Duration
}

// Emulated opens an emulated device that runs the kernels in Go.
func Emulated() (*cuda.Device, error) {
	return cuda.OpenEmulated(cuda.Emulation{Virtual: true, MemoryBytes: 4 << 30, PinnedBytesMax: 1 << 30, Kernels: kernels.Reference()})
}

// Check compares every case with ONNX Runtime's CPU results, with fresh random inputs and poisoned outputs,
// calling report for each. The error says how many failed.
func Check(ctx context.Context, dev *cuda.Device, c CheckConfig, cases []Case, report func(Checked)) error {
	free, _, err := dev.MemoryInfo()
	if err != nil {
		return err
	}
	r, err := executor.Open(dev, executor.Config{DeviceBytes: min(free/2, 8<<30), PinnedBytes: 64 << 20, Capture: c.Capture})
	if err != nil {
		return err
	}
	defer r.Close()
	failed := 0
	for i := range cases {
		err := c.one(ctx, dev, r, &cases[i], func(k Checked) {
			if !k.Passed {
				failed++
			}
			report(k)
		})
		if err != nil {
			failed++
			report(Checked{Case: cases[i].Name, Reason: err.Error()})
		}
		if dev.Err() != nil {
			return fmt.Errorf("check %q: %w", cases[i].Name, dev.Err())
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

func (c CheckConfig) one(ctx context.Context, dev *cuda.Device, r *executor.Runtime, k *Case, report func(Checked)) (err error) {
	ref, err := openReference(c.Library, k.Model)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ref.close()) }()
	b, err := openRig(dev, r, k.Model, k.Batches[len(k.Batches)-1])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	rng := rand.New(rand.NewPCG(c.Seed, 77))
	for _, n := range k.Batches {
		for _, byLayer := range []bool{false, true} {
			limit, cancel := context.WithTimeout(ctx, c.Timeout)
			out, err := c.compare(limit, b, ref, rng, k, n, byLayer)
			cancel()
			if err != nil {
				return err
			}
			report(out)
		}
	}
	return nil
}

func (c CheckConfig) compare(ctx context.Context, b *rig, ref *reference, rng *rand.Rand, k *Case, n int, byLayer bool) (Checked, error) {
	out := Checked{Case: k.Name, Batch: n, ByLayer: byLayer, Passed: true}
	inputs := b.random(rng, n, k.IntMax)
	want, err := ref.run(n, inputs)
	if err != nil {
		return out, err
	}
	got, err := b.run(ctx, n, byLayer)
	if err != nil {
		return out, fmt.Errorf("batch of %d: %w", n, err)
	}
	for i := range want {
		d, err := distance(got[i], want[i])
		if err != nil {
			return out, fmt.Errorf("output %d: %w", i, err)
		}
		if !(d <= ErrorMax) { // also when it is not a number
			out.Passed, out.Reason = false, fmt.Sprintf("output %d: relative error %.3g, at most %.0e", i, d, ErrorMax)
		}
		out.Error = max(out.Error, d)
	}
	return out, nil
}
