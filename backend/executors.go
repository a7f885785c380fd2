package backend

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/backend/ort"
)

// makeExecutors opens the executors of each core, GPU or emulated GPU. Each can run every model.
func (o *Options) makeExecutors(library *ort.Runtime) ([]GPU, error) {
	if o.GPUs {
		return o.onGPUs(library)
	}

	// One emulated GPU replaces all executors of a host.
	n := o.Executors
	if o.Emulate > 0 {
		n = o.Emulate
	}
	return openDevices(n, func(i int) ([]GPU, error) { return o.openHost(i, library) })
}

// openDevices opens n devices. The first lanes of all devices come first, because the scheduler gives batches to the first
// of the idle GPUs: at a low load no batch has another one beside it.
func openDevices(n int, open func(i int) ([]GPU, error)) ([]GPU, error) {
	var all []GPU
	for i := range n {
		lanes, err := open(i)
		if err != nil {
			return nil, errors.Join(err, closeGPUs(all))
		}
		all = append(all, lanes...)
	}

	slices.SortStableFunc(all, func(a, b GPU) int { return cmp.Compare(a.lane, b.lane) })
	return all, nil
}

// openHost opens the lanes of an emulated GPU for all models, or of cores that run real ones on ONNX Runtime.
func (o *Options) openHost(i int, library *ort.Runtime) ([]GPU, error) {
	name := fmt.Sprintf("emulated %d", i)
	options := emu.Options{Device: name}
	g := GPU{Name: name, Device: i, Core: -1}

	switch {
	case o.Emulate > 0:
		options.Plan = o.faults[i]
	case len(o.Cores) > 0:
		g.Core = o.Cores[i]
		g.Name = fmt.Sprintf("core %d", g.Core)
	default:
		g.Name = fmt.Sprintf("cpu %d", i)
	}

	all := o.splitGPU(g)
	if o.Emulate == 0 && library != nil {
		for k := range all {
			all[k].Executors = append(all[k].Executors, library.ExecutorOf(o.Threads/o.Lanes))
		}
		options.Beside = true
	}
	return o.addEmulated(all, options)
}

// splitGPU returns the lanes of a device, without executors.
func (o *Options) splitGPU(g GPU) (all []GPU) {
	name := g.Name
	for k := range o.Lanes {
		g.Name, g.Lanes, g.lane = device.LaneName(name, k, o.Lanes), o.Lanes, k
		all = append(all, g)
	}
	return all
}

// addEmulated adds the lanes of an emulated GPU to those of a device, which are closed after an error. They come last,
// because a model uses the first executor that supports it.
func (o *Options) addEmulated(all []GPU, options emu.Options) ([]GPU, error) {
	options.Lanes = o.Lanes
	emulated, err := emu.OpenLanes(options)
	if err != nil {
		return nil, errors.Join(err, closeGPUs(all))
	}
	for k, e := range emulated {
		all[k].Executors = append(all[k].Executors, e)
	}
	return all, nil
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
