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
	// Enqueue adds to s the commands on st that turn the tensors at inputs into those at outputs, n rows each.
	// Batches may be under way already; their commands precede these on st. An error leaves nothing to Release.
	Enqueue(s *cuda.Submission, st *cuda.Stream, n int, inputs, outputs []cuda.Address) error
	// Release ends a batch of n that Enqueue began: its commands have ended, or were never submitted.
	Release(n int) error
	// Update makes ready to replace the weights; replace carries it out, behind what was recorded by after. While
	// Update runs batches may be enqueued and released, not so during replace.
	Update(weights *repo.Model) (replace func(after *cuda.Event) error, err error)
	// Footprint says what the program takes on the device.
	Footprint() device.Footprint
	// Close frees the program; none of its batches runs.
	Close() error
}

// Config of an Executor.
type Config struct {
	// Compile makes a program of a model. The error wraps device.ErrUnsupported when another executor may take it.
	// programs is locked while programs are enqueued and released, but not when Compile is called: it is for Compile
	// to hold while it uses what programs share.
	Compile func(m *device.Model, programs sync.Locker) (Program, error)
	// Movable programs run wherever a slot's device memory is. Others want their tensors at the same addresses
	// each time (captured graphs hold them): early rows are then copied once more, within the device.
	Movable bool
	Cold    bool          // there is nothing to warm up
	Timeout time.Duration // of one batch, after which the device counts as lost, but in proportion to its profile; 0: limits.Device
	// Borrowed devices are left open by Close, and by New when it fails.
	Borrowed bool
	Pageable bool   // pin nothing, for comparison
	Close    func() // frees what the programs share, after all of them; may be nil
	// Held tells what the programs hold and have moved; may be nil.
	Held func() device.Memory
}

// Executor runs models on one device, which it owns from New to Close. It is a device.Executor.
type Executor struct {
	dev     *cuda.Device
	cfg     Config
	early   *cuda.Stream // copies of rows that arrive before their batch is submitted
	in      *cuda.Stream // copies of the others, while the batch before computes
	compute *cuda.Stream
	out     *cuda.Stream // copies of outputs, while the next batch computes
	updated *cuda.Event  // what was submitted before the latest Update; Update's
	areas   [depth]area  // where programs that are not movable find their tensors
	ended   time.Time    // when the last Wait returned; Wait's
	hung    bool         // a Wait has given up; Wait's

	mu    sync.Mutex // of Submit, and of Wait but for the waiting: programs belong to one goroutine at a time
	sub   cuda.Submission
	turn  int // the area of the next batch; guarded by mu
	under int // batches submitted that have not ended; guarded by mu

	tables   sync.RWMutex // taken last; guards all below
	models   map[*device.Model]*loaded
	slots    map[*device.Slot]*place
	unpinned int   // slots whose copies go the slow way
	held     int64 // device bytes of slots and areas
}

// loaded is a program with room for the addresses of its tensors.
type loaded struct {
	program         Program
	inputs, outputs []cuda.Address
	took            []time.Duration // by rows−1: what a short batch of late has taken; 0: not known
}

// noteTime learns how long a batch took: the shortest counts, and is forgotten slowly.
func (l *loaded) noteTime(rows int, took time.Duration) {
	t := &l.took[rows-1]
	if *t += *t / 64; took < *t || *t == 0 {
		*t = took
	}
}

// New takes over dev; on an error dev is closed.
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

	e.updated, err = e.dev.NewEvent()
	return err
}

// Device returns the device, for what its owner may ask: properties and counts.
func (e *Executor) Device() *cuda.Device { return e.dev }

// Capabilities says that batches overlap and rows may come early.
func (e *Executor) Capabilities() device.Capabilities {
	p := e.dev.Properties()
	c := device.Capabilities{Ahead: true, Early: e, Passes: depth, Kind: p.Name, Memory: p.MemoryBytes}
	switch {
	case e.cfg.Cold:
		c.Passes = 0
	case e.cfg.Movable:
		c.Passes = 1
	}
	return c
}

// Memory returns what the programs hold and have moved, as of the last batch, and what the slots take.
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

// Load compiles m. The error wraps device.ErrUnsupported when the model needs another executor.
func (e *Executor) Load(m *device.Model) (device.Footprint, error) {
	if e.findLoaded(m) != nil {
		return device.Footprint{}, fmt.Errorf("load %s: loaded already", m.Name)
	}
	if err := e.checkFits(m); err != nil {
		return device.Footprint{}, err
	}
	if err := e.dev.Err(); err != nil {
		return device.Footprint{}, fmt.Errorf("load %s: %w: %w", m.Name, device.ErrLost, err)
	}

	// No lock is held: compiling takes long, and batches go on meanwhile.
	p, err := e.cfg.Compile(m, &e.mu)
	if err != nil {
		return device.Footprint{}, fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err)
	}
	l := &loaded{program: p, inputs: make([]cuda.Address, len(m.Inputs)), outputs: make([]cuda.Address, len(m.Outputs)), took: make([]time.Duration, m.BatchMax)}

	e.tables.Lock()
	e.models[m] = l
	e.tables.Unlock()
	return p.Footprint(), nil
}

// Update replaces m's weights behind the batches that were submitted: their computation ends first.
func (e *Executor) Update(m *device.Model, weights *repo.Model) error {
	l := e.findLoaded(m)
	if l == nil {
		return fmt.Errorf("update %s: not loaded", m.Name)
	}

	// Reading and compiling take long: batches go on meanwhile, and only the exchange stops them.
	replace, err := l.program.Update(weights)
	if err != nil {
		return fmt.Errorf("update %s version %s: %w", m.Name, m.Version, err)
	}

	e.mu.Lock()
	defer e.mu.Unlock()

	// The event tells which batches still read the old weights.
	var s cuda.Submission
	s.Record(e.compute, e.updated)
	if err := e.dev.Submit(&s); err != nil {
		return fmt.Errorf("update %s version %s: %w", m.Name, m.Version, err)
	}

	if err := replace(e.updated); err != nil {
		return fmt.Errorf("update %s version %s: %w", m.Name, m.Version, err)
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

// findLoaded returns a loaded model, or nil.
func (e *Executor) findLoaded(m *device.Model) *loaded {
	e.tables.RLock()
	defer e.tables.RUnlock()
	return e.models[m]
}

// checkFits says whether every slot is large enough for m.
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

// Close frees everything and closes the device. A device that hangs is given up after some seconds.
func (e *Executor) Close() error {
	var errs []error

	// Programs go first: they hold what cfg.Close frees.
	for _, l := range e.models {
		errs = append(errs, l.program.Close())
	}
	e.models = nil

	for _, at := range e.slots {
		at.freeOnDevice()
	}
	e.slots = nil

	e.freeAreas()
	e.updated.Free()
	e.updated = nil

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
