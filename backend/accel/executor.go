package accel

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/cuda"
)

// Program is a model that is ready to run on a device.
type Program interface {
	// Enqueue adds to s the commands on st that turn the tensors at inputs into those at outputs, n rows each.
	// Batches may be under way already; their commands precede these on st. An error leaves nothing to Release.
	Enqueue(s *cuda.Submission, st *cuda.Stream, n int, inputs, outputs []cuda.Address) error
	// Release ends a batch of n that Enqueue began: its commands have ended, or were never submitted.
	Release(n int) error
	// Close frees the program; none of its batches runs.
	Close() error
}

// Config of an Executor.
type Config struct {
	// Compile makes a program of a model. The error wraps layers.ErrUnsupported when another executor must take it.
	Compile func(*device.Model) (Program, error)
	// Movable programs run wherever a slot's device memory is. Others want their tensors at the same addresses
	// each time (captured graphs hold them): early rows are then copied once more, within the device.
	Movable bool
	Cold    bool          // there is nothing to warm up: Load runs no batch
	Timeout time.Duration // of one batch, after which the device counts as lost, but 20 times its profile at least; 0: 10 s
	// Borrowed devices are left open by Close, and by New when it fails.
	Borrowed bool
	Pageable bool   // pin nothing, for comparison
	Close    func() // frees what the programs share, after all of them; may be nil
}

// Executor runs models on one device, which it owns from New to Close. Load, Execute and Close belong to one
// goroutine, Submit and Wait to those that device.Ahead says; Arrived and Abandon may be called from others once
// everything is loaded.
type Executor struct {
	dev      *cuda.Device
	cfg      Config
	early    *cuda.Stream // copies of rows that arrive before their batch is submitted
	in       *cuda.Stream // copies of the others, while the batch before computes
	compute  *cuda.Stream
	out      *cuda.Stream // copies of outputs, while the next batch computes
	areas    [depth]area  // where programs that are not movable find their tensors
	models   map[*device.Model]*loaded
	slots    map[*device.Slot]*place
	unpinned int       // slots whose copies go the slow way
	ended    time.Time // when the last Wait returned; Wait's
	hung     bool      // a Wait has given up; Wait's

	mu    sync.Mutex // of Submit, and of Wait but for the waiting: programs belong to one goroutine at a time
	sub   cuda.Submission
	turn  int // the area of the next batch; guarded by mu
	under int // batches submitted that have not ended; guarded by mu
}

// loaded is a program with room for the addresses of its tensors.
type loaded struct {
	program         Program
	inputs, outputs []cuda.Address
	took            []time.Duration // by rows−1: what a short batch of late has taken; 0: not known
}

// note learns how long a batch took: the shortest counts, and is forgotten slowly.
func (l *loaded) note(rows int, took time.Duration) {
	t := &l.took[rows-1]
	if *t += *t / 64; took < *t || *t == 0 {
		*t = took
	}
}

// New takes over dev; on an error dev is closed.
func New(dev *cuda.Device, c Config) (*Executor, error) {
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	e := &Executor{dev: dev, cfg: c, models: map[*device.Model]*loaded{}, slots: map[*device.Slot]*place{}}
	if err := e.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open executor on %s: %w", dev.Properties().Name, err), e.Close())
	}
	return e, nil
}

func (e *Executor) open() (err error) {
	for _, st := range []**cuda.Stream{&e.early, &e.in, &e.compute, &e.out} {
		if *st, err = e.dev.NewStream(); err != nil {
			return err
		}
	}
	return nil
}

// Device returns the device, for what its owner may ask: properties and counts.
func (e *Executor) Device() *cuda.Device { return e.dev }

// Unpinned returns how many slots could not be pinned: their copies are slower and do not overlap.
func (e *Executor) Unpinned() int { return e.unpinned }

// Load compiles m, registers the slots and runs every batch size once. The error wraps
// layers.ErrUnsupported when the model needs another executor.
func (e *Executor) Load(m *device.Model, slots []*device.Slot) error {
	if e.models[m] != nil {
		return fmt.Errorf("load %s: loaded already", m.Name)
	}
	for _, s := range slots {
		if err := s.Fits(m); err != nil {
			return err
		}
	}
	err := e.place(slots)
	if err == nil {
		err = e.load(m, slots)
	}
	if err != nil {
		return fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err)
	}
	return nil
}

func (e *Executor) load(m *device.Model, slots []*device.Slot) error {
	p, err := e.cfg.Compile(m)
	if err != nil {
		return err
	}
	l := &loaded{program: p, inputs: make([]cuda.Address, len(m.Inputs)), outputs: make([]cuda.Address, len(m.Outputs)), took: make([]time.Duration, m.BatchMax)}
	e.models[m] = l
	if e.cfg.Cold {
		return nil
	}
	if err := e.warmUp(m, slots); err != nil {
		delete(e.models, m)
		if errors.Is(err, cuda.ErrHung) {
			return err // its memory may be in use for ever
		}
		return errors.Join(err, p.Close())
	}
	return nil
}

// warmUp runs the sizes on zeros, so that the first real batch finds its plan and its graph.
func (e *Executor) warmUp(m *device.Model, slots []*device.Slot) error {
	for i, s := range slots {
		for k := range m.Inputs {
			clear(s.Input(m, k, m.BatchMax))
		}
		for n := m.BatchMax; n >= 1; n-- {
			for range e.graphs() {
				if err := e.Execute(device.Batch{Model: m, Slot: s, Rows: n}); err != nil {
					return fmt.Errorf("run a batch of %d on zeros: %w", n, err)
				}
			}
			if i > 0 {
				break // plans and graphs do not depend on the slot
			}
		}
	}
	return nil
}

// graphs is how many places a batch's tensors can be in, once a slot is given.
func (e *Executor) graphs() int {
	if e.cfg.Movable {
		return 1
	}
	return depth
}

// Close frees everything and closes the device. A device that hangs is given up after some seconds.
func (e *Executor) Close() error {
	var errs []error
	for _, l := range e.models {
		errs = append(errs, l.program.Close())
	}
	e.models = nil
	for _, at := range e.slots {
		at.close()
	}
	e.slots = nil
	for i := range e.areas {
		e.areas[i].memory.Free()
		e.areas[i].memory = nil
	}
	if e.cfg.Close != nil {
		e.cfg.Close()
		e.cfg.Close = nil
	}
	for _, st := range []**cuda.Stream{&e.early, &e.in, &e.compute, &e.out} {
		(*st).Free()
		*st = nil
	}
	if e.dev.Err() != nil {
		errs = nil // of a lost device nothing comes back in order
	}
	if !e.cfg.Borrowed {
		errs = append(errs, e.dev.Close())
	}
	return errors.Join(errs...)
}
