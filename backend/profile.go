package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/measure"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/rdma"
)

// ProfileOptions select the models to measure, and how long.
type ProfileOptions struct {
	Models  string   // the model repository
	Only    []string // names of models; empty: every real one
	Rounds  int      // samples per batch size; 0: 40
	Core    int      // pin to this core; -1: do not pin
	Threads int      // of an executor of ONNX Runtime; 0: 1
	Lanes   []int    // numbers of equal parts of the device to measure while all run, 1 among them; empty: 1
	Seed    uint64   // of the order of batch sizes
	Dry     bool     // store nothing
	GPU     bool     // on this host's first GPU instead of ONNX Runtime
	Library string   // ONNX Runtime; empty: where ort.Library says
	Out     io.Writer
}

// MeasureModels measures real models of a repository on this host, prints a table and a line per model, and stores
// the profiles in the repository. It continues after a model that fails and returns all errors.
func MeasureModels(ctx context.Context, o ProfileOptions) error {
	if err := o.fillDefaults(); err != nil {
		return err
	}
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

	kind, about, err := o.host(1).hostKind(library)
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

	var gains laneGains
	for _, m := range models {
		// Measured models are stored: an interrupt loses only the rest.
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		if err := o.measureModel(ctx, m, library, &gains); err != nil {
			errs = append(errs, fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err))
		}
	}
	return errors.Join(append(errs, gains.print(o.Out, o.Lanes))...)
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

// measureModel measures a model with each number of lanes.
func (o ProfileOptions) measureModel(ctx context.Context, m *repo.Model, library *ort.Runtime, gains *laneGains) error {
	if m.HasClasses() || m.OpenOutputs() {
		return errors.New("its dims are variable or its inputs optional: every shape is measured when the first request of it comes")
	}
	d, err := device.NewModel(m, 0, SlotBytesMax)
	if err != nil {
		return err
	}

	var splits []measure.Split
	for _, lanes := range o.Lanes {
		p, err := o.measureLanes(ctx, d, library, lanes)
		if err != nil {
			if lanes > 1 {
				err = fmt.Errorf("%d lanes: %w", lanes, err)
			}
			return err
		}
		splits = append(splits, measure.Split{Lanes: lanes, Profile: p})
	}

	if len(splits) < 2 {
		return nil
	}
	fmt.Fprintf(o.Out, "\n%s version %s, one lane while all run the same batches\n", m.Name, m.Version)
	gains.add(m, splits)
	return measure.PrintSplits(o.Out, splits, m.SLO)
}

// measureLanes measures one lane while all run, prints the result and stores it.
func (o ProfileOptions) measureLanes(ctx context.Context, d *device.Model, library *ort.Runtime, lanes int) (*profile.Profile, error) {
	m, host := d.Source, o.host(lanes)
	kind, about, err := host.hostKind(library)
	if err != nil {
		return nil, err
	}

	var res *measure.Result
	open := func() ([]device.Executor, error) { return openMeasured(host, library) }
	l, err := loadedOn(open, d, func(all []measure.Lane) (err error) {
		res, err = measureAmong(ctx, d, all, measure.Options{Rounds: o.Rounds, Seed: o.Seed})
		return err
	})
	if err != nil {
		return nil, err
	}

	among := ""
	if lanes > 1 {
		among = fmt.Sprintf(", one of %d lanes", lanes)
	}
	fmt.Fprintf(o.Out, "\n%s version %s%s, batches up to %d, measured in %v\n", m.Name, m.Version, among, d.BatchMax, res.Elapsed.Round(time.Millisecond))
	if err := errors.Join(res.Print(o.Out), l.print(o.Out)); err != nil {
		return nil, err
	}

	if !o.Dry {
		p := res.Stored(kind, about, time.Now())
		p.StaticBytes, p.DynamicBytes, p.LoadNS, p.WarmUpNS = l.footprint.Static, l.footprint.Dynamic, l.load, l.warmUp
		if err := m.SetProfile(p); err != nil {
			return nil, fmt.Errorf("store the profile: %w", err)
		}
	}
	return res.Profile()
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

// loaded runs f with m loaded on ONNX Runtime.
func loaded(m *device.Model, library *ort.Runtime, f func(device.Executor, *device.Slot) error) (loading, error) {
	open := func() ([]device.Executor, error) { return []device.Executor{library.Executor()}, nil }
	return loadedOn(open, m, func(all []measure.Lane) error { return f(all[0].Executor, all[0].Slots[0]) })
}

// loadedOn runs f with m loaded on new executors, each with slots of its own, in memory like a backend's. What it returns
// is of the first one.
func loadedOn(open func() ([]device.Executor, error), m *device.Model, f func([]measure.Lane) error) (l loading, err error) {
	node, err := rdma.Open(rdma.Config{Providers: []string{"local"}})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()

	executors, err := open()
	if err != nil {
		return l, err
	}

	// Executors are closed before the memory is freed, as it may be pinned.
	var memory []*rdma.Buffer
	defer func() {
		err = errors.Join(err, closeExecutors(executors))
		for _, b := range memory {
			b.Free()
		}
	}()

	var all []measure.Lane
	for i, e := range executors {
		lane := measure.Lane{Executor: e}
		for k := range slotsOf(e, len(executors)) {
			// Slots lie in registered memory, because copies from other memory take a different time.
			b, err := node.Alloc(device.PagedBytes(device.SlotBytes([]*device.Model{m})))
			if err != nil {
				return l, err
			}
			memory = append(memory, b)
			lane.Slots = append(lane.Slots, device.NewSlot(k, device.Pages(b.Bytes())))
		}

		loading, err := loadLane(lane, m)
		if err != nil {
			return l, err
		}
		if i == 0 {
			l = loading
		}
		all = append(all, lane)
	}
	return l, f(all)
}

// slotsOf returns how many slots an executor is measured with: with other lanes beside it, one may take batches ahead.
func slotsOf(e device.Executor, lanes int) int {
	if lanes > 1 && e.Capabilities().Ahead {
		return 2
	}
	return 1
}

// loadLane loads m on an executor and warms it up.
func loadLane(lane measure.Lane, m *device.Model) (l loading, err error) {
	e := lane.Executor
	for _, s := range lane.Slots {
		if err := e.AddSlot(s); err != nil {
			return l, err
		}
	}

	began := time.Now()
	if l.footprint, err = e.Load(m); err != nil {
		return l, err
	}
	l.load = time.Since(began)

	// A first run is slow and must not be measured; a model that does not accept zeros is measured with its samples.
	run := func(b device.Batch) error { return device.Execute(e, b) }
	began = time.Now()
	if err := device.WarmUp(m, lane.Slots[0], e.Capabilities().Passes, false, run); err != nil && len(m.Samples) == 0 && !m.Varies {
		return l, err
	}
	l.warmUp = time.Since(began)
	return l, nil
}
