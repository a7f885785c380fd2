package backend

import (
	"errors"
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/backend/ort"
)

// makeExecutors opens the executors of each core, GPU or emulated GPU. Each can run every model.
func (o *Options) makeExecutors(library *ort.Runtime) ([]GPU, error) {
	if o.GPUs {
		return o.onGPUs(library)
	}
	var all []GPU

	// One emulated GPU replaces all executors of a host.
	n := o.Executors
	if o.Emulate > 0 {
		n = o.Emulate
	}

	for i := range n {
		g, err := o.openHost(i, library)
		if err != nil {
			return nil, errors.Join(err, closeGPUs(all))
		}
		all = append(all, g)
	}

	return all, nil
}

// openHost opens an emulated GPU for all models, or a core that runs real ones on ONNX Runtime.
func (o *Options) openHost(i int, library *ort.Runtime) (GPU, error) {
	name := fmt.Sprintf("emulated %d", i)
	options := emu.Options{Device: name}
	g := GPU{Name: name, Core: -1}

	switch {
	case o.Emulate > 0:
		options.Plan = o.faults[i]
	case len(o.Cores) > 0:
		g.Core = o.Cores[i]
		g.Name = fmt.Sprintf("core %d", g.Core)
	default:
		g.Name = fmt.Sprintf("cpu %d", i)
	}

	if o.Emulate == 0 && library != nil {
		g.Executors = append(g.Executors, library.Executor())
		options.Beside = true
	}

	// The emulated one comes last: a model uses the first executor that supports it.
	emulated, err := emu.Open(options)
	if err != nil {
		return g, errors.Join(err, closeExecutors(g.Executors))
	}
	g.Executors = append(g.Executors, emulated)
	return g, nil
}

func closeGPUs(all []GPU) error {
	var errs []error
	for _, g := range all {
		errs = append(errs, closeExecutors(g.Executors))
	}

	return errors.Join(errs...)
}

func closeExecutors(all []device.Executor) error {
	var errs []error
	for _, e := range all {
		errs = append(errs, e.Close())
	}

	return errors.Join(errs...)
}
