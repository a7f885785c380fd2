package accel

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/cuda"
)

// Program is a model that is ready to run on a device.
type Program interface {
	// Enqueue adds to s the commands on st that turn the tensors at inputs into those at outputs, n rows each.
	Enqueue(s *cuda.Submission, st *cuda.Stream, n int, inputs, outputs []cuda.Address) error
	// Release ends the batch of n that Enqueue began: its commands have ended, or were never submitted.
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
	Close   func()        // frees what the programs share, after all of them; may be nil
}

// Executor runs models on one device, which it owns from New to Close. Load, Execute and Close belong to one
// goroutine; Arrived and Abandon may be called from others once everything is loaded.
type Executor struct {
	dev      *cuda.Device
	cfg      Config
	compute  *cuda.Stream
	early    *cuda.Stream // copies of rows that arrive before their batch runs
	done     *cuda.Event
	work     *cuda.Memory // where programs that are not movable find their tensors
	models   map[*device.Model]*loaded
	slots    map[*device.Slot]*place
	sub      cuda.Submission
	unpinned int // slots whose copies go the slow way
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
	if e.compute, err = e.dev.NewStream(); err != nil {
		return err
	}
	if e.early, err = e.dev.NewStream(); err != nil {
		return err
	}
	e.done, err = e.dev.NewEvent()
	return err
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
			if err := e.Execute(device.Batch{Model: m, Slot: s, Rows: n}); err != nil {
				return fmt.Errorf("run a batch of %d on zeros: %w", n, err)
			}
			if i > 0 {
				break // plans and graphs do not depend on the slot
			}
		}
	}
	return nil
}

// Execute copies what has not arrived early, runs the program and copies the outputs out, in one submission.
func (e *Executor) Execute(b device.Batch) error {
	l, at := e.models[b.Model], e.slots[b.Slot]
	if l == nil || at == nil {
		return fmt.Errorf("execute %s: not loaded", b.Model.Name)
	}
	if b.Rows < 1 || b.Rows > b.Model.BatchMax {
		return fmt.Errorf("execute %s: batch of %d: want 1 to %d", b.Model.Name, b.Rows, b.Model.BatchMax)
	}
	base := e.base(at)
	s := &e.sub
	s.Reset()
	at.gather(e, s, b, base)
	for k := range b.Model.Inputs {
		lo, _ := b.Model.Inputs[k].Span(0, b.Rows)
		l.inputs[k] = base + cuda.Address(lo)
	}
	for k := range b.Model.Outputs {
		lo, _ := b.Model.Outputs[k].Span(0, b.Rows)
		l.outputs[k] = base + cuda.Address(lo)
	}
	if err := l.program.Enqueue(s, e.compute, b.Rows, l.inputs, l.outputs); err != nil {
		return e.failed(b, join(err, e.settle(at)))
	}
	for k := range b.Model.Outputs {
		s.CopyOut(e.compute, b.Slot.Output(b.Model, k, b.Rows), l.outputs[k])
	}
	s.Record(e.compute, e.done)
	began := time.Now()
	err := e.finish(s, l.took[b.Rows-1], e.patience(b))
	if err == nil {
		l.note(b.Rows, time.Since(began))
	}
	if errors.Is(err, cuda.ErrHung) {
		return e.failed(b, err) // the program stays in use: the device may still run it
	}
	if released := l.program.Release(b.Rows); err == nil {
		err = released
	}
	if err != nil {
		return e.failed(b, join(err, e.settle(at)))
	}
	return nil
}

// settle waits for early copies of a batch that has failed (X2).
func (e *Executor) settle(at *place) error { return e.dev.WaitFor(abandonMost, at.ended) }

// base is where the batch's tensors lie on the device, at the offsets that they have in a slot.
func (e *Executor) base(at *place) cuda.Address {
	if e.cfg.Movable {
		return at.memory.Address()
	}
	return e.work.Address()
}

// patience is how long a batch may take before the device counts as hanging.
func (e *Executor) patience(b device.Batch) time.Duration {
	if b.Model.Profile == nil || b.Rows > b.Model.Profile.Max() {
		return e.cfg.Timeout
	}
	return max(e.cfg.Timeout, patienceFactor*b.Model.Profile.Exec(b.Rows))
}

const patienceFactor = 20

// finish submits s and waits for its end.
func (e *Executor) finish(s *cuda.Submission, expected, patience time.Duration) error {
	err := e.dev.Submit(s)
	if err != nil { // what was enqueued must end before the memory may be used again
		s.Reset()
		s.Record(e.compute, e.done)
		err = errors.Join(err, e.dev.Submit(s))
	}
	return join(err, e.dev.WaitAbout(expected, patience, e.done))
}

// join is errors.Join without an allocation when there is at most one error.
func join(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return errors.Join(a, b)
}

// failed says whose batch failed, and whether the device can be of any more use.
func (e *Executor) failed(b device.Batch, err error) error {
	err = fmt.Errorf("run %s, batch of %d: %w", b.Model.Name, b.Rows, err)
	if errors.Is(err, cuda.ErrHung) || e.dev.Err() != nil {
		return errors.Join(err, device.ErrLost)
	}
	return err
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
	e.work.Free()
	e.work = nil
	if e.cfg.Close != nil {
		e.cfg.Close()
		e.cfg.Close = nil
	}
	e.done.Free()
	e.early.Free()
	e.compute.Free()
	e.done, e.early, e.compute = nil, nil, nil
	if e.dev.Err() != nil {
		errs = nil // of a lost device nothing comes back in order
	}
	return errors.Join(append(errs, e.dev.Close())...)
}
