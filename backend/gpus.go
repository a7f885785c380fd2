package backend

import (
	"cmp"
	"errors"
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/ort"
	"downbeat.dev/cuda"
)

// onGPUs makes an executor for each GPU of this host. Models that its kernels do not support run on ONNX
// Runtime beside it.
func (o *Options) onGPUs(library *ort.Runtime) ([]GPU, error) {
	n, err := cuda.Count()
	if err == nil && n == 0 {
		err = cuda.ErrNotSupported
	}
	if err != nil {
		return nil, fmt.Errorf("gpu: %w", err)
	}
	var all []GPU
	for i := range n {
		g, err := openGPU(i, library)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("gpu %d: %w", i, err), closeExecutors(all))
		}
		all = append(all, g)
	}
	return all, nil
}

func openGPU(i int, library *ort.Runtime) (GPU, error) {
	var other device.Executor
	if library != nil {
		other = library.Executor()
	}
	e, err := layered.Open(i, layered.Config{}, other)
	if err != nil {
		if other != nil {
			err = errors.Join(err, other.Close())
		}
		return GPU{}, err
	}
	emulated, err := emu.New()
	if err != nil {
		return GPU{}, errors.Join(err, e.Close())
	}
	return GPU{Name: fmt.Sprintf("gpu %d (%s)", i, e.Name()), Executor: bothAhead{both{real: e, emulated: emulated}}, Core: -1}, nil
}

// noteAside says that a model that was loaded runs elsewhere than on the GPU, and in which precision.
func (g *gpu) noteAside(m *device.Model) {
	x, ok := g.executor.(device.Choosy)
	if !ok {
		return
	}
	if why := x.Aside(m); why != nil {
		g.aside++
		g.backend.log.Warn("the GPU's kernels do not support the model: it runs on the processor", "gpu", g.name, "model", m.Name,
			"version", m.Version, "precision", "fp32", "asked", cmp.Or(m.Source.Config.Params["precision"], "fp32"), "err", why)
	}
}

// unpinned returns how many slots copies are slow from.
func (g *gpu) unpinned() int {
	if x, ok := g.executor.(device.Pinning); ok {
		return x.Unpinned()
	}
	return 0
}

// bothAhead is both where each takes batches ahead: a GPU and the emulated one beside it.
type bothAhead struct{ both }

// Aside says why the GPU does not run m.
func (e bothAhead) Aside(m *device.Model) error {
	if x, ok := e.of(m).(device.Choosy); ok {
		return x.Aside(m)
	}
	return nil
}

// Unpinned returns how many slots could not be pinned for the GPU.
func (e bothAhead) Unpinned() int {
	if x, ok := e.real.(device.Pinning); ok {
		return x.Unpinned()
	}
	return 0
}

// Submit hands b to the executor of its model's kind.
func (e bothAhead) Submit(b device.Batch) error { return e.of(b.Model).(device.Ahead).Submit(b) }

// Wait returns when b has ended.
func (e bothAhead) Wait(b device.Batch) error { return e.of(b.Model).(device.Ahead).Wait(b) }
