package worker

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/emu"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/repo"
)

// Application is a DAG of models: a module begins when its predecessors have ended.
type Application struct {
	Name    string
	Modules []Module
}

// Module is a model and the number of its requests per frame.
type Module struct {
	Model  string // of the repository
	FanOut int
	After  []int
}

// Worker is a number of executors, each with all models of an application. It is not safe for concurrent use.
type Worker struct {
	app    Application
	models []*device.Model // by module
	free   chan *lane
	all    []*lane
	// Loading is the time of opening the models on the first executor, and WarmUp that of their first runs: a session
	// waits for both.
	Loading, WarmUp time.Duration
}

// lane is one executor and the memory of its batch.
type lane struct {
	executor device.Executor
	memory   []byte // outside the Go heap: an executor passes it to C
	slot     *device.Slot
}

// slotBytesMax bounds the memory of an executor's batch, which has one row.
const slotBytesMax = 64 << 20

// Open loads the application's models from a repository on this many executors. The caller must Close it.
func Open(models string, app Application, executors int, open func() (device.Executor, error)) (*Worker, error) {
	r, err := repo.OpenAll([]string{models}, repo.Options{Graph: onnx.Signature})
	if err != nil {
		return nil, err
	}

	w := &Worker{app: app, free: make(chan *lane, executors)}
	for _, m := range app.Modules {
		found, err := r.Find(m.Model, "")
		if err != nil {
			return nil, err
		}

		d, err := device.NewModel(found, 1, slotBytesMax)
		if err != nil {
			return nil, err
		}
		if found.Platform == repo.PlatformEmulated {
			if d.Profile, err = emu.Profile(found); err != nil {
				return nil, err
			}
		}
		w.models = append(w.models, d)
	}

	for range executors {
		if err := w.addLane(open); err != nil {
			return nil, errors.Join(fmt.Errorf("application %s: %w", app.Name, err), w.Close())
		}
	}
	return w, nil
}

// addLane opens an executor and loads every model on it.
func (w *Worker) addLane(open func() (device.Executor, error)) error {
	memory, err := unix.Mmap(-1, 0, device.PagedBytes(device.SlotBytes(w.models)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}

	x, err := open()
	if err != nil {
		return errors.Join(err, unix.Munmap(memory))
	}

	l := &lane{executor: x, memory: memory, slot: device.NewSlot(0, device.Pages(memory))}
	w.all = append(w.all, l)
	if err := x.AddSlot(l.slot); err != nil {
		return err
	}

	loading, warmUp, err := l.loadModels(w.models)
	if len(w.all) == 1 {
		w.Loading, w.WarmUp = loading, warmUp
	}

	if err == nil {
		w.free <- l
	}
	return err
}

// loadModels loads models and runs each of them until it is warm; modules may share a model.
func (l *lane) loadModels(models []*device.Model) (loading, warmUp time.Duration, err error) {
	for _, m := range models {
		began := time.Now()
		if _, err := l.executor.Load(m); err != nil {
			return loading, warmUp, err
		}
		loading += time.Since(began)

		began = time.Now()
		run := func(b device.Batch) error { return device.Execute(l.executor, b) }
		if err := device.WarmUp(m, l.slot, l.executor.Capabilities().Passes, false, run); err != nil {
			return loading, warmUp, err
		}
		warmUp += time.Since(began)
	}
	return loading, warmUp, nil
}

// Close ends the executors and frees their memory. No frame may be under way.
func (w *Worker) Close() (err error) {
	for _, l := range w.all {
		err = errors.Join(err, l.executor.Close(), unix.Munmap(l.memory))
	}
	w.all = nil
	return err
}
