package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/measure"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/repo"
	"downbeat.dev/rdma"
)

// ProfileOptions select the models to measure, and how long.
type ProfileOptions struct {
	Models  string   // the model repository
	Only    []string // names of models; empty: every real one
	Rounds  int      // samples per batch size; 0: 40
	Core    int      // pin to this core; -1: do not pin
	Seed    uint64   // of the order of batch sizes
	Dry     bool     // store nothing
	GPU     bool     // on this host's first GPU instead of ONNX Runtime
	Library string   // ONNX Runtime; empty: where ort.Library says
	Out     io.Writer
}

// MeasureModels measures real models of a repository on this host, prints a table and a line per model, and stores
// the profiles in the repository. It continues after a model that fails and returns all errors.
func MeasureModels(ctx context.Context, o ProfileOptions) error {
	r, err := openRepository(o.Models, false)
	if err != nil {
		return err
	}

	var library *ort.Runtime
	if !o.GPU {
		if library, err = ort.Open(o.Library); err != nil {
			return err
		}
	}

	kind, about, err := hostKind(o.GPU, library)
	if err != nil {
		return err
	}

	models, errs := o.chooseModels(r)
	fmt.Fprintf(o.Out, "host kind %s (%s), seed %d\n", kind, about, o.Seed)

	// Measure one thread on one core, as an executor's batches run.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if o.Core >= 0 {
		if err := pinThread(o.Core); err != nil {
			return fmt.Errorf("core: %d: %w", o.Core, err)
		}
	}

	for _, m := range models {
		// Measured models are stored: an interrupt loses only the rest.
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		if err := o.measureModel(ctx, m, library, kind, about); err != nil {
			errs = append(errs, fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err))
		}
	}
	return errors.Join(errs...)
}

// chooseModels returns the requested models, and an error for each that cannot be measured.
func (o ProfileOptions) chooseModels(r *repo.Repository) ([]*repo.Model, []error) {
	var models []*repo.Model
	var errs []error

	for _, name := range o.Only {
		m, err := r.Find(name, "")
		switch {
		case err != nil:
			errs = append(errs, err)
		case m.Platform == repo.PlatformEmulated:
			errs = append(errs, fmt.Errorf("model %s is emulated: it takes what its config.pbtxt says", name))
		default:
			models = append(models, m)
		}
	}

	// Errors of models that were not requested do not matter.
	if len(o.Only) > 0 {
		return models, errs
	}

	for _, e := range r.Errors {
		errs = append(errs, e)
	}
	for i := range r.Models {
		if r.Models[i].Platform != repo.PlatformEmulated {
			models = append(models, &r.Models[i])
		}
	}

	if len(models) == 0 {
		errs = append(errs, fmt.Errorf("%s has no real model to measure", o.Models))
	}
	return models, errs
}

func (o ProfileOptions) measureModel(ctx context.Context, m *repo.Model, library *ort.Runtime, kind, about string) error {
	if m.HasClasses() || m.OpenOutputs() {
		return errors.New("its dims are variable or its inputs optional: every shape is measured when the first request of it comes")
	}
	d, err := device.NewModel(m, 0, SlotBytesMax)
	if err != nil {
		return err
	}

	var res *measure.Result
	l, err := o.loaded(d, library, func(e device.Executor, s *device.Slot) (err error) {
		res, err = measure.Run(ctx, measure.On(e), d, s, measure.Options{Rounds: o.Rounds, Seed: o.Seed})
		return err
	})
	if err != nil {
		return err
	}

	fmt.Fprintf(o.Out, "\n%s version %s, batches up to %d, measured in %v\n", m.Name, m.Version, d.BatchMax, res.Elapsed.Round(time.Millisecond))
	if err := errors.Join(res.Print(o.Out), l.print(o.Out)); err != nil || o.Dry {
		return err
	}

	p := res.Stored(kind, about, time.Now())
	p.StaticBytes, p.DynamicBytes, p.LoadNS, p.WarmUpNS = l.footprint.Static, l.footprint.Dynamic, l.load, l.warmUp
	if err := m.SetProfile(p); err != nil {
		return fmt.Errorf("store the profile: %w", err)
	}
	return nil
}

// loading is what it took to load a model.
type loading struct {
	footprint    device.Footprint
	load, warmUp time.Duration
}

func (l *loading) print(w io.Writer) error {
	dynamic := "unknown"
	if l.footprint.Dynamic > 0 {
		dynamic = fmt.Sprint(l.footprint.Dynamic)
	}
	_, err := fmt.Fprintf(w, "memory: %d bytes while loaded, %s more while the largest batch runs; loaded in %v, warmed up in %v\n",
		l.footprint.Static, dynamic, l.load.Round(10*time.Microsecond), l.warmUp.Round(10*time.Microsecond))
	return err
}

// loaded runs f with m loaded on the executor that the options select.
func (o ProfileOptions) loaded(m *device.Model, library *ort.Runtime, f func(device.Executor, *device.Slot) error) (loading, error) {
	if !o.GPU {
		return loaded(m, library, f)
	}
	return loadedOn(func() (device.Executor, error) { return layered.Open(0, layered.Config{}) }, m, f)
}

// loaded runs f with m loaded on ONNX Runtime.
func loaded(m *device.Model, library *ort.Runtime, f func(device.Executor, *device.Slot) error) (loading, error) {
	return loadedOn(func() (device.Executor, error) { return library.Executor(), nil }, m, f)
}

// loadedOn runs f with m loaded on a new executor and a slot of its own, in memory like a backend's.
func loadedOn(open func() (device.Executor, error), m *device.Model, f func(device.Executor, *device.Slot) error) (l loading, err error) {
	node, err := rdma.Open(rdma.Config{Providers: []string{"local"}})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()

	// The slot lies in registered memory, because copies from other memory take a different time.
	memory, err := node.Alloc(device.PagedBytes(device.SlotBytes([]*device.Model{m})))
	if err != nil {
		return l, err
	}
	defer memory.Free()

	e, err := open()
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, e.Close()) }() // before the memory is freed, as it may be pinned

	slot := device.NewSlot(0, device.Pages(memory.Bytes()))
	if err := e.AddSlot(slot); err != nil {
		return l, err
	}

	began := time.Now()
	if l.footprint, err = e.Load(m); err != nil {
		return l, err
	}
	l.load = time.Since(began)

	// A first run is slow and must not be measured; a model that does not accept zeros is measured with its samples.
	run := func(b device.Batch) error { return device.Execute(e, b) }
	began = time.Now()
	if err := device.WarmUp(m, slot, e.Capabilities().Passes, false, run); err != nil && len(m.Samples) == 0 && !m.Varies {
		return l, err
	}
	l.warmUp = time.Since(began)

	return l, f(e, slot)
}
