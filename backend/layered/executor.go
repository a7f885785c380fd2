package layered

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"downbeat.dev/backend/accel"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/limits"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/layers"
)

// Config of an Executor.
type Config struct {
	DeviceBytes int64         // for parameters and activations of all models; 0: four fifths of the free memory
	PinnedBytes int64         // for evicted parameters; 0: 256 MiB
	Timeout     time.Duration // of one batch, after which the GPU counts as lost; 0: limits.Device
}

const deviceBytesMin = 1 << 10

// Executor runs models on one device, which it owns from New to Close, or on a lane of one.
type Executor struct {
	*accel.Executor
	runtime *executor.Runtime
	split   *splitDevice // nil: it owns the device

	mu     sync.Mutex
	memory device.Memory // as of the last batch; guarded by mu
}

// New takes over dev; on an error it closes dev.
func New(dev *cuda.Device, c Config) (*Executor, error) {
	all, err := NewLanes(dev, c, 1)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// fillDefaults sets the memory that models may have on the whole device.
func (c *Config) fillDefaults(dev *cuda.Device) error {
	free, _, err := dev.MemoryInfo()

	// Models get four fifths of the memory; slots and their areas are allocated from the rest.
	if c.DeviceBytes == 0 {
		c.DeviceBytes = free / 5 * 4
	}
	if c.PinnedBytes == 0 {
		c.PinnedBytes = 256 << 20
	}
	return err
}

func (e *Executor) openRuntime(dev *cuda.Device, c Config) error {
	free, total, err := dev.MemoryInfo()
	if err != nil {
		return err
	}
	if c.DeviceBytes < deviceBytesMin {
		c.DeviceBytes = deviceBytesMin // the reservation fails if even this is too much
	}

	// Tuning takes time while a model is loaded, and saves time in every batch.
	e.runtime, err = executor.Open(dev, executor.Config{DeviceBytes: c.DeviceBytes, PinnedBytes: c.PinnedBytes, Hang: limits.Moves,
		Capture: true, Tune: true})
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = fmt.Errorf("%w: %d KiB wanted for models, %d of the device's %d KiB were free; see what else runs on it: nvidia-smi", err, c.DeviceBytes>>10, free>>10, total>>10)
	}
	return err
}

// program is an executor.Model that reports the memory that its batches moved.
type program struct {
	*executor.Model
	e      *Executor
	model  *device.Model
	common int64       // bytes of parameters shared with the model whose exit it is
	shared sync.Locker // guards the runtime
}

// Release ends a batch that has ended on the device.
func (p program) Release(n int) error {
	err := p.Model.Release(n, nil)
	p.e.noteMemory()
	return err
}

// Footprint returns the memory of the parameters, and of the largest batch's activations.
func (p program) Footprint() device.Footprint {
	p.shared.Lock()
	defer p.shared.Unlock()
	static, dynamic := p.Model.Footprint()
	return device.Footprint{Static: static, Shared: min(static, p.common), Dynamic: dynamic}
}

// Succeed reads the weights and compiles them for the batch sizes in use.
func (p program) Succeed(m *device.Model, weights *repo.Model) (accel.Program, error) {
	if err := p.model.CheckUpdate(weights); err != nil {
		return nil, err
	}

	g, part, err := readGraph(weights, p.model)
	if err != nil {
		return nil, err
	}

	// Batch sizes that are planned after this are compiled by the model's Succeed.
	p.shared.Lock()
	batches := p.Planned()
	p.shared.Unlock()

	// Compilation needs no lock, so batches continue meanwhile.
	w, err := p.Weights(g, batches)
	if err != nil {
		return nil, markShape(err)
	}

	next, err := p.Model.Succeed(w, p.shared)
	if err != nil {
		return nil, markShape(err)
	}
	return program{next, p.e, m, part.SharedBytes, p.shared}, nil
}

// Close removes the model, and records the freed memory.
func (p program) Close() error {
	err := p.Model.Close()
	p.e.noteMemory()
	return err
}

func (e *Executor) compile(m *device.Model, shared sync.Locker) (accel.Program, error) {
	if m.Source.ONNXPath == "" {
		return nil, fmt.Errorf("platform %s: %w", m.Source.Platform, device.ErrUnsupported)
	}

	// The kernels need at least one element in every tensor.
	if isEmpty := func(t device.Tensor) bool { return t.IsEmpty() }; slices.ContainsFunc(m.Inputs, isEmpty) || slices.ContainsFunc(m.Outputs, isEmpty) {
		return nil, fmt.Errorf("a dimension of size 0: %w", device.ErrUnsupported)
	}

	g, part, err := readGraph(m.Source, m)
	if err != nil {
		return nil, markUnsupported(err)
	}

	precision, err := layers.ParsePrecision(m.Source.Config.Params["precision"])
	if err != nil {
		return nil, fmt.Errorf("parameters: %w", err)
	}

	// Read the file without the lock, because batches of other models need it.
	shared.Lock()
	defer shared.Unlock()
	l, err := e.runtime.Load(g, executor.Options{BatchMax: m.BatchMax, SLO: m.Source.SLO, Precision: precision, Share: !part.Whole, Shared: shared})
	if err != nil {
		return nil, e.explainRoom(markUnsupported(err))
	}
	if err := e.checkRoom(l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return program{l, e, m, part.SharedBytes, shared}, nil
}

// markShape wraps the error of weights that need a load with device.ErrShape.
func markShape(err error) error {
	if errors.Is(err, executor.ErrShape) {
		return fmt.Errorf("%w: %w", device.ErrShape, err)
	}
	return err
}

// markUnsupported wraps the error of an unsupported model with device.ErrUnsupported.
func markUnsupported(err error) error {
	if errors.Is(err, layers.ErrUnsupported) {
		return fmt.Errorf("%w: %w", device.ErrUnsupported, err)
	}
	return err
}

// readGraph reads the part of source's file that m runs, and puts the graph's inputs and outputs in m's order.
func readGraph(source *repo.Model, m *device.Model) (*layers.Graph, onnx.Part, error) {
	part, err := onnx.ReadPart(source)
	if err != nil {
		return nil, part, err
	}

	// An input with a default in the graph is a constant here, which no request can replace.
	for i := range source.Inputs {
		if name := source.Inputs[i].Name; source.Config.IsOptional(name) && part.Graph.Initializer(name) != nil {
			return nil, part, fmt.Errorf("input %q takes the place of a default: %w", name, layers.ErrUnsupported)
		}
	}

	// Clients rely on the repository's configuration, so the graph must agree with it.
	if err := part.Graph.Match(source); err != nil {
		return nil, part, err
	}

	g, err := Graph(part.Model)
	if err != nil {
		return nil, part, err
	}
	return g, part, orderTensors(g, m)
}

// closeDims replaces the sizes that a graph leaves open by those that the model is loaded with; the batch dimension
// stays open.
func closeDims(dims []int, sizes []int64) {
	batch := len(dims) - len(sizes)
	for i, n := range sizes {
		if k := batch + i; k >= 0 && dims[k] < 0 {
			dims[k] = int(n)
		}
	}
}

// orderTensors puts the graph's inputs and outputs in the model's order.
func orderTensors(g *layers.Graph, m *device.Model) error {
	byName := map[string]layers.Value{}
	for _, v := range g.Inputs {
		byName[v.Name] = v
	}
	if len(g.Inputs) != len(m.Inputs) {
		return fmt.Errorf("the graph has %d inputs, the model %d", len(g.Inputs), len(m.Inputs))
	}

	// A slot's tensors are in the model's order, which may differ from the file's.
	g.Inputs, g.Outputs = nil, nil
	for i := range m.Inputs {
		v := byName[m.Inputs[i].Name]
		closeDims(v.Dims, m.Inputs[i].Graph)
		g.Inputs = append(g.Inputs, v)
	}
	for i := range m.Outputs {
		g.Outputs = append(g.Outputs, m.Outputs[i].Name)
	}
	return nil
}

// noteMemory copies the store's counts; the programs' lock is held.
func (e *Executor) noteMemory() {
	s := e.runtime.Stats()

	e.mu.Lock()
	defer e.mu.Unlock()
	e.memory = device.Memory{DeviceBytes: s.DeviceBytes, PinnedBytes: s.PinnedBytes, Hits: uint64(s.Hits),
		LoadsPinned: uint64(s.LoadsPinned), LoadsPageable: uint64(s.LoadsPageable),
		ToPinned: uint64(s.ToPinned), ToPageable: uint64(s.ToPageable), Freed: uint64(s.Freed),
		BytesIn: uint64(s.BytesIn), BytesOut: uint64(s.BytesOut), Pageable: uint64(s.Fallback), LoadTime: s.LoadTime}
}

// heldMemory returns the memory of the models' contents as of the last batch.
func (e *Executor) heldMemory() device.Memory {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.memory
}

// Open opens GPU index. The error matches cuda.ErrNotSupported on a host or in a build without a GPU.
func Open(index int, c Config) (*Executor, error) {
	all, err := OpenLanes(index, c, 1)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// Name returns the GPU's name, for logs and for profiles, which apply to GPUs of that name.
func (e *Executor) Name() string { return e.Device().Properties().Name }

// Kind returns the kind for which a profile of GPU index is valid, and a description of the GPU.
func Kind(index int) (kind, about string, err error) {
	dev, err := cuda.Open(cuda.Config{Index: index})
	if err != nil {
		return "", "", err
	}

	p := dev.Properties()
	about = fmt.Sprintf("%s, %d MiB, driver %d.%d", p.Name, p.MemoryBytes>>20, p.DriverVersion/1000, p.DriverVersion%1000/10)
	return fmt.Sprintf("gpu/%s/layered", strings.ReplaceAll(strings.ToLower(p.Name), " ", "-")), about, dev.Close()
}

// Libraries names the libraries that matrix products and convolutions may use on GPU index, in addition to our own kernels;
// "" if there are none.
func Libraries(index int) (string, error) {
	dev, err := cuda.Open(cuda.Config{Index: index})
	if err != nil {
		return "", err
	}
	l, err := dev.OpenLibraries("")
	names := l.Names()
	l.Close()
	return names, errors.Join(err, dev.Close())
}
