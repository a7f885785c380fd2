package accel

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
)

// Program is a model that is ready to run on a device.
type Program interface {
	// Enqueue adds to s the commands on st that compute the tensors at outputs from those at inputs, n rows each.
	// Batches may already be under way; their commands precede these on st. After an error there is nothing to
	// Release.
	Enqueue(s *cuda.Submission, st *cuda.Stream, n int, inputs, outputs []cuda.Address) error
	// Release ends a batch of n that Enqueue began: its commands have ended, or were never submitted.
	Release(n int) error
	// Succeed prepares a program of m that does the same with other weights. It takes over what depends on the shapes
	// alone. Batches of both may be enqueued and released from then on, and Close ends one of them. The error wraps
	// device.ErrShape if more than the weights differ. Batches may be enqueued and released during Succeed.
	Succeed(m *device.Model, weights *repo.Model) (Program, error)
	// Footprint returns the program's memory on the device.
	Footprint() device.Footprint
	// Close frees the program; none of its batches runs.
	Close() error
}

// Config of an Executor.
type Config struct {
	// Compile compiles a model to a program. The error wraps device.ErrUnsupported if another executor may run the
	// model. programs is locked while programs are enqueued and released, but not during Compile: Compile locks it
	// while it uses state that programs share.
	Compile func(m *device.Model, programs sync.Locker) (Program, error)
	// Movable programs run at any slot's device memory. Others need their tensors at the same addresses each time,
	// because captured graphs hold them: early rows are then copied once more, within the device.
	Movable bool
	Cold    bool          // no warm-up is needed
	Timeout time.Duration // of one batch: then the device counts as lost; extended by the profile; 0: limits.Device
	// Borrowed devices stay open after Close, and after a failed New.
	Borrowed bool
	// Lanes is the number of executors that share the device, each with an equal part of its memory; 0 and 1: one has it all.
	Lanes    int
	Pageable bool   // pin nothing, for comparison
	Close    func() // frees what the programs share, after all of them; may be nil
	// Held returns the memory that the programs hold and have moved; may be nil.
	Held func() device.Memory
}

// Executor runs models on one device, which it owns from New to Close. It is a device.Executor.
type Executor struct {
	dev     *cuda.Device
	cfg     Config
	early   *cuda.Stream // copies of rows that arrive before their batch is submitted
	in      *cuda.Stream // copies of the others, while the previous batch computes
	compute *cuda.Stream
	out     *cuda.Stream // copies of outputs, while the next batch computes
	areas   [depth]area  // tensors of programs that are not movable
	ended   time.Time    // when the last Wait returned; Wait's
	hung    bool         // a Wait has given up; Wait's

	mu    sync.Mutex // of Submit, and of Wait except while it waits: programs belong to one goroutine at a time
	sub   cuda.Submission
	turn  int // the area of the next batch; guarded by mu
	under int // batches submitted that have not ended; guarded by mu
	// retired are programs that an Update has replaced, whose batches have not ended, and unclosed are the errors of
	// closing such programs; guarded by mu.
	retired  []*loaded
	unclosed error

	tables   sync.RWMutex // locked last; guards all below
	models   map[*device.Model]*loaded
	slots    map[*device.Slot]*place
	unpinned int   // slots whose copies use pageable memory
	held     int64 // device bytes of slots and areas
}

// loaded is a program with room for the addresses of its tensors.
type loaded struct {
	program         Program
	inputs, outputs []cuda.Address
	took            []time.Duration // by rows−1: the shortest recent duration of a batch; 0: unknown
	under           int             // batches submitted that have not ended; guarded by Executor.mu
}

func newLoaded(m *device.Model, p Program) *loaded {
	return &loaded{program: p, inputs: make([]cuda.Address, len(m.Inputs)), outputs: make([]cuda.Address, len(m.Outputs)), took: make([]time.Duration, m.BatchMax)}
}

// noteTime updates the shortest duration of a batch, which increases slowly over time.
func (l *loaded) noteTime(rows int, took time.Duration) {
	t := &l.took[rows-1]
	if *t += *t / 64; took < *t || *t == 0 {
		*t = took
	}
}

// New takes over dev; on an error it closes dev.
func New(dev *cuda.Device, c Config) (*Executor, error) {
	e := &Executor{dev: dev, cfg: c, models: map[*device.Model]*loaded{}, slots: map[*device.Slot]*place{}}
	if err := e.openStreams(); err != nil {
		return nil, errors.Join(fmt.Errorf("open executor on %s: %w", dev.Properties().Name, err), e.Close())
	}
	return e, nil
}

func (e *Executor) openStreams() (err error) {
	for _, st := range []**cuda.Stream{&e.early, &e.in, &e.compute, &e.out} {
		if *st, err = e.dev.NewStream(); err != nil {
			return err
		}
	}
	return nil
}

// Device returns the device, whose owner may read properties and counters.
func (e *Executor) Device() *cuda.Device { return e.dev }

// Capabilities says that batches overlap and rows may arrive early.
func (e *Executor) Capabilities() device.Capabilities {
	p := e.dev.Properties()
	c := device.Capabilities{Ahead: true, Early: e, Passes: depth, Kind: device.LaneKind(p.Name, e.cfg.Lanes), Memory: p.MemoryBytes / int64(max(1, e.cfg.Lanes))}
	switch {
	case e.cfg.Cold:
		c.Passes = 0
	case e.cfg.Movable:
		c.Passes = 1
	}
	return c
}

// Memory returns the memory that the programs hold and have moved, as of the last batch, and the memory of the slots.
func (e *Executor) Memory() device.Memory {
	var m device.Memory
	if e.cfg.Held != nil {
		m = e.cfg.Held()
	}

	e.tables.RLock()
	defer e.tables.RUnlock()
	m.SlotBytes, m.Unpinned = e.held, e.unpinned
	return m
}

// Load compiles m. The error wraps device.ErrUnsupported if the model needs another executor.
func (e *Executor) Load(m *device.Model) (device.Footprint, error) {
	if err := e.mayLoad(m); err != nil {
		return device.Footprint{}, err
	}

	// Hold no lock: compilation takes long, and batches continue meanwhile.
	p, err := e.cfg.Compile(m, &e.mu)
	if err != nil {
		return device.Footprint{}, fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err)
	}
	e.setLoaded(m, newLoaded(m, p))
	return p.Footprint(), nil
}

// mayLoad returns the reason why m cannot be loaded, if there is one.
func (e *Executor) mayLoad(m *device.Model) error {
	if e.findLoaded(m) != nil {
		return fmt.Errorf("load %s: loaded already", m.Name)
	}
	if err := e.checkFits(m); err != nil {
		return err
	}
	if err := e.dev.Err(); err != nil {
		return fmt.Errorf("load %s: %w: %w", m.Name, device.ErrLost, err)
	}
	return nil
}

// Unload closes m's program.
func (e *Executor) Unload(m *device.Model) error {
	l := e.findLoaded(m)
	if l == nil {
		return fmt.Errorf("unload %s: not loaded", m.Name)
	}

	e.tables.Lock()
	delete(e.models, m)
	e.tables.Unlock()

	e.mu.Lock()
	defer e.mu.Unlock()
	return l.program.Close()
}

// setLoaded enters a loaded model and returns the former entry.
func (e *Executor) setLoaded(m *device.Model, l *loaded) (old *loaded) {
	e.tables.Lock()
	defer e.tables.Unlock()
	old = e.models[m]
	e.models[m] = l
	return old
}

// findLoaded returns a loaded model, or nil.
func (e *Executor) findLoaded(m *device.Model) *loaded {
	e.tables.RLock()
	defer e.tables.RUnlock()
	return e.models[m]
}

// checkFits checks that every slot is large enough for m.
func (e *Executor) checkFits(m *device.Model) error {
	e.tables.RLock()
	defer e.tables.RUnlock()
	for s := range e.slots {
		if err := s.Fits(m); err != nil {
			return err
		}
	}
	return nil
}

// Close frees everything and closes the device. It gives up on a hanging device after some seconds.
func (e *Executor) Close() error {
	var errs []error

	// Close programs first: they hold resources that cfg.Close frees.
	for _, l := range e.models {
		errs = append(errs, l.program.Close())
	}
	for _, l := range e.retired { // of batches that never ended
		errs = append(errs, l.program.Close())
	}
	errs = append(errs, e.unclosed)
	e.models, e.retired, e.unclosed = nil, nil, nil

	for _, at := range e.slots {
		at.freeOnDevice()
	}
	e.slots = nil

	e.freeAreas()
	if e.cfg.Close != nil {
		e.cfg.Close()
		e.cfg.Close = nil
	}

	for _, st := range []**cuda.Stream{&e.early, &e.in, &e.compute, &e.out} {
		(*st).Free()
		*st = nil
	}

	if e.dev.Err() != nil {
		errs = nil // a lost device reports an error for each call
	}
	if !e.cfg.Borrowed {
		errs = append(errs, e.dev.Close())
	}
	return errors.Join(errs...)
}
