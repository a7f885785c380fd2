package backend

import (
	"errors"
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/ort"
	"downbeat.dev/cuda"
)

// onGPUs opens an executor for each GPU of this host. Models that its kernels do not support run on ONNX Runtime
// beside it.
func (o *Options) onGPUs(library *ort.Runtime) ([]GPU, error) {
	// A driver without GPUs is as good as none.
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
			return nil, errors.Join(fmt.Errorf("gpu %d: %w", i, err), closeGPUs(all))
		}
		all = append(all, g)
	}
	return all, nil
}

func openGPU(i int, library *ort.Runtime) (GPU, error) {
	e, err := layered.Open(i, layered.Config{})
	if err != nil {
		return GPU{}, err
	}
	g := GPU{Name: fmt.Sprintf("gpu %d (%s)", i, e.Name()), Executors: []device.Executor{e}, Core: -1}
	if library != nil {
		g.Executors = append(g.Executors, library.Executor())
	}

	// Emulated models of the repository run beside real ones, on any GPU.
	emulated, err := emu.Open(emu.Options{Beside: true})
	if err != nil {
		return GPU{}, errors.Join(err, closeExecutors(g.Executors))
	}
	g.Executors = append(g.Executors, emulated)
	return g, nil
}
