package layered

import (
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/layers"
)

// Config of an Executor.
type Config struct {
	DeviceBytes int64         // for parameters and activations of all models; 0: four fifths of what is free
	PinnedBytes int64         // for evicted parameters; 0: 256 MiB
	Timeout     time.Duration // of one batch, after which the GPU counts as lost; 0: 10 s
}

// Executor runs models on one device, which it owns from New to Close. It belongs to one goroutine.
type Executor struct {
	dev      *cuda.Device
	cfg      Config
	runtime  *executor.Runtime
	stream   *cuda.Stream
	done     *cuda.Event
	models   map[*device.Model]*loaded
	pinned   map[*device.Slot]*cuda.Registered
	sub      cuda.Submission
	unpinned int // slots whose copies go the slow way
}

// loaded is a model with device memory for its tensors.
type loaded struct {
	model           *executor.Model
	memory          *cuda.Memory
	inputs, outputs []cuda.Address
}

// New takes over dev; on an error dev is closed.
func New(dev *cuda.Device, c Config) (*Executor, error) {
	e := &Executor{dev: dev, cfg: c, models: map[*device.Model]*loaded{}, pinned: map[*device.Slot]*cuda.Registered{}}
	if err := e.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open layered executor: %w", err), e.Close())
	}
	return e, nil
}

func (e *Executor) open() (err error) {
	free, _, err := e.dev.MemoryInfo()
	if err != nil {
		return err
	}
	c := &e.cfg
	if c.DeviceBytes == 0 {
		c.DeviceBytes = free / 5 * 4
	}
	if c.PinnedBytes == 0 {
		c.PinnedBytes = 256 << 20
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	if e.stream, err = e.dev.NewStream(); err != nil {
		return err
	}
	if e.done, err = e.dev.NewEvent(); err != nil {
		return err
	}
	e.runtime, err = executor.Open(e.dev, executor.Config{DeviceBytes: c.DeviceBytes, PinnedBytes: c.PinnedBytes, Capture: true})
	return err
}

// Load compiles m for every batch size, pins the slots and runs each size once. The error wraps
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
	l, err := e.load(m)
	if err == nil {
		e.models[m] = l
		if err = e.pin(slots); err == nil {
			err = e.warmUp(m, slots)
		}
	}
	if err != nil {
		delete(e.models, m)
		return errors.Join(fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err), l.close())
	}
	return nil
}

func (e *Executor) load(m *device.Model) (*loaded, error) {
	file, err := onnx.Read(m.Source.ONNXPath)
	if err != nil {
		return nil, err
	}
	if err := file.Graph.Match(m.Source); err != nil {
		return nil, err
	}
	g, err := Graph(file)
	if err != nil {
		return nil, err
	}
	if err := order(g, m); err != nil {
		return nil, err
	}
	l := &loaded{}
	if l.model, err = e.runtime.Load(g, executor.Options{BatchMax: m.BatchMax, SLO: m.Source.SLO}); err != nil {
		return l, err
	}
	return l, l.allocate(e.dev, m)
}

// order puts the graph's inputs and outputs in the model's order.
func order(g *layers.Graph, m *device.Model) error {
	byName := map[string]layers.Value{}
	for _, v := range g.Inputs {
		byName[v.Name] = v
	}
	if len(g.Inputs) != len(m.Inputs) {
		return fmt.Errorf("the graph has %d inputs, the model %d", len(g.Inputs), len(m.Inputs))
	}
	g.Inputs, g.Outputs = nil, nil
	for i := range m.Inputs {
		g.Inputs = append(g.Inputs, byName[m.Inputs[i].Name])
	}
	for i := range m.Outputs {
		g.Outputs = append(g.Outputs, m.Outputs[i].Name)
	}
	return nil
}

// allocate places the tensors of a full batch, each aligned to 256 bytes.
func (l *loaded) allocate(dev *cuda.Device, m *device.Model) (err error) {
	var total int64
	place := func(list []device.Tensor) (at []cuda.Address) {
		for i := range list {
			at = append(at, cuda.Address(total))
			total += (int64(list[i].Bytes)*int64(m.BatchMax) + 255) &^ 255
		}
		return at
	}
	l.inputs, l.outputs = place(m.Inputs), place(m.Outputs)
	if l.memory, err = dev.Alloc(total); err != nil {
		return err
	}
	for _, list := range [][]cuda.Address{l.inputs, l.outputs} {
		for i := range list {
			list[i] += l.memory.Address()
		}
	}
	return nil
}

func (l *loaded) close() (err error) {
	if l == nil {
		return nil
	}
	l.memory.Free()
	if l.model != nil {
		err = l.model.Close()
	}
	return err
}

// Unpinned returns how many slots could not be pinned: their copies are slower and do not overlap.
func (e *Executor) Unpinned() int { return e.unpinned }

// pin registers the slots' memory once, so that copies run at the link's speed and overlap.
func (e *Executor) pin(slots []*device.Slot) error {
	for _, s := range slots {
		if e.pinned[s] != nil {
			continue
		}
		r, err := e.dev.Register(s.Memory())
		if e.dev.Err() != nil {
			return fmt.Errorf("slot %d: %w", s.Index, err)
		}
		if err != nil {
			e.unpinned++ // the limit on locked pages, or a page shared with a neighbour: slower, not wrong
			continue
		}
		e.pinned[s] = r
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

// Execute copies b's inputs in, runs the layers and copies the outputs out, in one submission.
func (e *Executor) Execute(b device.Batch) error {
	l := e.models[b.Model]
	if l == nil {
		return fmt.Errorf("execute %s: not loaded", b.Model.Name)
	}
	s := &e.sub
	s.Reset()
	for k := range b.Model.Inputs {
		s.CopyIn(e.stream, l.inputs[k], b.Slot.Input(b.Model, k, b.Rows))
	}
	if err := l.model.Enqueue(s, e.stream, b.Rows, l.inputs, l.outputs); err != nil {
		return e.failed(b, err)
	}
	for k := range b.Model.Outputs {
		s.CopyOut(e.stream, b.Slot.Output(b.Model, k, b.Rows), l.outputs[k])
	}
	s.Record(e.stream, e.done)
	err := e.dev.Submit(s)
	if err != nil { // what was enqueued must end before the model's memory may go
		s.Reset()
		s.Record(e.stream, e.done)
		err = errors.Join(err, e.dev.Submit(s))
	}
	err = errors.Join(err, e.dev.WaitFor(e.cfg.Timeout, e.done))
	if errors.Is(err, cuda.ErrHung) {
		return e.failed(b, err) // the contents stay in use: the device may still run them
	}
	if err := errors.Join(err, l.model.Release(b.Rows, nil)); err != nil {
		return e.failed(b, err)
	}
	return nil
}

// failed says whose batch failed, and whether the device can be of any more use.
func (e *Executor) failed(b device.Batch, err error) error {
	err = fmt.Errorf("run %s, batch of %d: %w", b.Model.Name, b.Rows, err)
	if errors.Is(err, cuda.ErrHung) || e.dev.Err() != nil {
		return errors.Join(err, device.ErrLost)
	}
	return err
}

// Close frees everything and closes the device.
func (e *Executor) Close() error {
	var errs []error
	for _, l := range e.models {
		errs = append(errs, l.close())
	}
	e.models = nil
	for _, r := range e.pinned {
		r.Free()
	}
	e.pinned = nil
	if e.runtime != nil {
		e.runtime.Close()
		e.runtime = nil
	}
	e.done.Free()
	e.stream.Free()
	e.done, e.stream = nil, nil
	if e.dev.Err() != nil {
		errs = nil // of a lost device nothing comes back in order
	}
	return errors.Join(append(errs, e.dev.Close())...)
}
