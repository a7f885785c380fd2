package backend

import (
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

	return openDevices(n, func(i int) ([]GPU, error) {
		lanes, err := o.openGPU(i, library)
		if err != nil {
			return nil, fmt.Errorf("gpu %d: %w", i, err)
		}
		return lanes, nil
	})
}

// openGPU opens the lanes of a GPU.
func (o *Options) openGPU(i int, library *ort.Runtime) ([]GPU, error) {
	opened, err := layered.OpenLanes(i, layered.Config{}, o.Lanes)
	if err != nil {
		return nil, err
	}

	all := o.splitGPU(GPU{Name: fmt.Sprintf("gpu %d (%s)", i, opened[0].Name()), Device: i, Core: -1})
	for k, e := range opened {
		all[k].Executors = []device.Executor{e}
		if library != nil {
			all[k].Executors = append(all[k].Executors, library.Executor())
		}
	}

	// Emulated models of the repository run beside real ones, on any GPU.
	return o.addEmulated(all, emu.Options{Beside: true})
}
