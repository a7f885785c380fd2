package layered

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"downbeat.dev/backend/accel"
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

const deviceBytesMin = 1 << 10

// Executor runs models on one device, which it owns from New to Close.
type Executor struct {
	*accel.Executor
	runtime *executor.Runtime

	mu     sync.Mutex
	memory device.Memory // as of the last batch; guarded by mu
}

// New takes over dev; on an error dev is closed.
func New(dev *cuda.Device, c Config) (*Executor, error) {
	e := &Executor{}
	err := e.open(dev, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open layered executor: %w", err), dev.Close())
	}
	e.Executor, err = accel.New(dev, accel.Config{Compile: e.compile, Timeout: c.Timeout, Close: e.runtime.Close})
	return e, err
}

func (e *Executor) open(dev *cuda.Device, c Config) error {
	free, total, err := dev.MemoryInfo()
	if err != nil {
		return err
	}
	if c.DeviceBytes == 0 {
		c.DeviceBytes = free / 5 * 4
	}
	if c.PinnedBytes == 0 {
		c.PinnedBytes = 256 << 20
	}
	if c.DeviceBytes < deviceBytesMin {
		c.DeviceBytes = deviceBytesMin // the reservation says that even this is too much
	}
	e.runtime, err = executor.Open(dev, executor.Config{DeviceBytes: c.DeviceBytes, PinnedBytes: c.PinnedBytes, Capture: true, Tune: true})
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = fmt.Errorf("%w: %d KiB wanted for models, %d of the device's %d KiB were free; see what else runs on it: nvidia-smi", err, c.DeviceBytes>>10, free>>10, total>>10)
	}
	return err
}

// program is an executor.Model that tells what its batches moved.
type program struct {
	*executor.Model
	e *Executor
}

// Release ends a batch that has ended on the device.
func (p program) Release(n int) error {
	err := p.Model.Release(n, nil)
	p.e.note()
	return err
}

func (e *Executor) compile(m *device.Model) (accel.Program, error) {
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
	precision, err := layers.ParsePrecision(m.Source.Config.Params["precision"])
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}
	l, err := e.runtime.Load(g, executor.Options{BatchMax: m.BatchMax, SLO: m.Source.SLO, Precision: precision})
	if err != nil {
		return nil, err
	}
	return program{l, e}, nil
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

// note takes over the store's counts, which belong to this goroutine.
func (e *Executor) note() {
	s := e.runtime.Stats()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory = device.Memory{DeviceBytes: s.DeviceBytes, PinnedBytes: s.PinnedBytes, Hits: uint64(s.Hits),
		LoadsPinned: uint64(s.LoadsPinned), LoadsPageable: uint64(s.LoadsPageable),
		ToPinned: uint64(s.ToPinned), ToPageable: uint64(s.ToPageable), Freed: uint64(s.Freed),
		BytesIn: uint64(s.BytesIn), BytesOut: uint64(s.BytesOut), Unpinned: uint64(s.Fallback), LoadTime: s.LoadTime}
}

// Memory returns what the models' contents came to so far, as of the last batch.
func (e *Executor) Memory() device.Memory {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.memory
}
