package gpu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"unsafe"

	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/layers"
)

// rig is a loaded graph with memory for one batch of any size.
type rig struct {
	dev     *cuda.Device
	model   *executor.Model
	stream  *cuda.Stream
	done    *cuda.Event
	plan    *layers.Plan // of the largest batch
	memory  []*cuda.Memory
	host    []*cuda.Slab
	inputs  []cuda.Address
	outputs []cuda.Address
	sub     cuda.Submission
}

// openRig loads m on r; after an error nothing stays open.
func openRig(dev *cuda.Device, r *executor.Runtime, m *onnx.Model, batchMax int, precision layers.Precision) (*rig, error) {
	g, err := layered.Graph(m)
	if err != nil {
		return nil, err
	}
	b := &rig{dev: dev}
	if err := b.openRig(r, g, executor.Options{BatchMax: batchMax, Precision: precision}); err != nil {
		return nil, errors.Join(err, b.closeRig())
	}
	return b, nil
}

// openRig loads a graph and allocates the tensors of its largest batch.
func (b *rig) openRig(r *executor.Runtime, g *layers.Graph, o executor.Options) (err error) {
	if b.model, err = r.Load(g, o); err != nil {
		return err
	}
	if b.plan, err = b.model.Plan(o.BatchMax); err != nil {
		return err
	}
	if b.stream, err = b.dev.NewStream(); err != nil {
		return err
	}
	if b.done, err = b.dev.NewEvent(); err != nil {
		return err
	}
	if b.inputs, err = b.allocateTensors(b.plan.Inputs); err != nil {
		return err
	}
	b.outputs, err = b.allocateTensors(b.plan.Outputs)
	return err
}

func (b *rig) allocateTensors(tensors []layers.Tensor) (at []cuda.Address, err error) {
	for _, t := range tensors {
		n, err := layers.Elements(t.Dims)
		if err != nil {
			return nil, err
		}

		bytes := int64(n * t.Type.Size())
		m, err := b.dev.Alloc(bytes)
		if err != nil {
			return nil, err
		}
		b.memory = append(b.memory, m)

		h, err := b.dev.AllocHost(bytes)
		if err != nil {
			return nil, err
		}
		b.host = append(b.host, h)

		at = append(at, m.Address())
	}
	return at, nil
}

func (b *rig) closeRig() (err error) {
	// Free of a nil slab, event or stream does nothing, so a partly opened rig also closes.
	for _, h := range b.host {
		h.Free()
	}
	for _, m := range b.memory {
		m.Free()
	}
	b.done.Free()
	b.stream.Free()
	if b.model != nil {
		err = b.model.Close()
	}
	return err
}

// randomInputs fills the inputs with a batch of n and returns them.
func (b *rig) randomInputs(rng *rand.Rand, n int, intMax int64) [][]byte {
	var all [][]byte
	for i, t := range b.plan.Inputs {
		h := b.host[i].Bytes()

		// Memory is the largest batch's; a smaller batch uses its first rows.
		h = h[:len(h)/b.plan.Batch*n]

		switch t.Type {
		case layers.Float32:
			for j := 0; j < len(h); j += 4 {
				binary.LittleEndian.PutUint32(h[j:], math.Float32bits(b.roundTo(float32(rng.NormFloat64()))))
			}
		case layers.Int64:
			for j := 0; j < len(h); j += 8 {
				binary.LittleEndian.PutUint64(h[j:], uint64(rng.Int64N(max(intMax, 2))))
			}
		default:
			for j := range h {
				h[j] = byte(rng.Int64N(max(intMax, 2)))
			}
		}

		all = append(all, h)
	}
	return all
}

// roundTo rounds f to the model's precision: an input that must be rounded is another input, and the floor of it
// another number.
func (b *rig) roundTo(f float32) float32 {
	switch b.plan.Precision {
	case layers.FP16:
		return kernels.FromHalf(kernels.ToHalf(f))
	case layers.BF16:
		return kernels.FromBFloat(kernels.ToBFloat(f))
	}
	return f
}

// runBatch runs a batch of n with poisoned outputs and returns the outputs as numbers; by layers if hook is set.
func (b *rig) runBatch(ctx context.Context, n int, byLayer bool) ([][]float64, error) {
	b.sub.Reset()
	k := len(b.plan.Inputs)

	for i := range b.plan.Inputs {
		h := b.host[i].Bytes()
		b.sub.CopyIn(b.stream, b.inputs[i], h[:len(h)/b.plan.Batch*n])
	}

	// Fill the outputs with NaN, so that elements that a kernel omits show.
	for i := range b.plan.Outputs {
		b.sub.Fill(b.stream, b.outputs[i], 0xff, b.memory[k+i].Bytes())
	}

	if err := b.computeBatch(ctx, n, byLayer); err != nil {
		return nil, err
	}

	var values [][]float64
	for i, t := range b.plan.Outputs {
		h := b.host[k+i].Bytes()
		h = h[:len(h)/b.plan.Batch*n]
		// Clear host memory as well: a missing copy must not leave the right answer of the previous batch.
		clear(h)

		b.sub.Reset()
		b.sub.CopyOut(b.stream, h, b.outputs[i])
		b.sub.Record(b.stream, b.done)
		if err := errors.Join(b.dev.Submit(&b.sub), b.dev.Wait(ctx, b.done)); err != nil {
			return nil, err
		}

		if t.Type == layers.Int64 {
			values = append(values, widenNumbers(numbersOf[int64](h)))
		} else {
			values = append(values, widenNumbers(numbersOf[float32](h)))
		}
	}
	return values, nil
}

func (b *rig) computeBatch(ctx context.Context, n int, byLayer bool) error {
	if byLayer {
		if err := b.dev.Submit(&b.sub); err != nil {
			return err
		}
		_, err := b.model.Run(ctx, b.stream, n, b.inputs, b.outputs, nil)
		return err
	}

	// One submission: the graph's launches and the event leave together, as a backend sends them.
	if err := b.model.Enqueue(&b.sub, b.stream, n, b.inputs, b.outputs); err != nil {
		return err
	}
	b.sub.Record(b.stream, b.done)
	err := errors.Join(b.dev.Submit(&b.sub), b.dev.Wait(ctx, b.done))
	return errors.Join(err, b.model.Release(n, nil))
}

func numbersOf[T any](b []byte) []T {
	// Pinned memory is aligned for every type, so read its bytes as numbers in place.
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

func widenNumbers[T float32 | int64](v []T) []float64 {
	out := make([]float64, len(v))
	for i := range v {
		out[i] = float64(v[i])
	}
	return out
}

// distanceTo returns the distance of got from want in two measures. worst is the largest error of an element,
// relative to its own size plus the tensor's root mean square, so that elements near zero do not decide. norm is the
// norm of the difference over the norm of want. Both are NaN if only one side has a NaN.
func distanceTo(got, want []float64) (worst, norm float64, err error) {
	if len(got) != len(want) {
		return 0, 0, fmt.Errorf("%d elements, reference has %d", len(got), len(want))
	}

	square, off := 0.0, 0.0
	for i, w := range want {
		// Report a NaN on one side: no bound on differences finds it.
		if math.IsNaN(got[i]) != math.IsNaN(w) {
			return math.NaN(), math.NaN(), nil
		}
		square += w * w
		off += (got[i] - w) * (got[i] - w)
	}

	rms := math.Sqrt(square / float64(max(len(want), 1)))
	for i, w := range want {
		worst = max(worst, math.Abs(got[i]-w)/(math.Abs(w)+rms+1e-30))
	}
	return worst, math.Sqrt(off / (square + 1e-30)), nil
}
