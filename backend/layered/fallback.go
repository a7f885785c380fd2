package layered

import (
	"errors"
	"fmt"
	"strings"

	"downbeat.dev/backend/device"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
)

// Fallback runs models on a GPU, and those that its kernels do not support on another executor. What belongs to
// one goroutine there does here.
type Fallback struct {
	gpu   *Executor
	other device.Executor
	to    map[*device.Model]device.Executor
	why   map[*device.Model]error // of models that are on other
}

// Open opens GPU index for models, with other for those that it does not support. The error matches
// cuda.ErrNotSupported on a host or in a build without a GPU; other is not closed then.
func Open(index int, c Config, other device.Executor) (*Fallback, error) {
	dev, err := cuda.Open(cuda.Config{Index: index})
	if err != nil {
		return nil, err
	}
	gpu, err := New(dev, c)
	if err != nil {
		return nil, err
	}
	return WithFallback(gpu, other), nil
}

// WithFallback owns both executors; other may be nil.
func WithFallback(gpu *Executor, other device.Executor) *Fallback {
	return &Fallback{gpu: gpu, other: other, to: map[*device.Model]device.Executor{}, why: map[*device.Model]error{}}
}

// Name returns the GPU's name, for logs and for profiles, which hold on GPUs of that name.
func (f *Fallback) Name() string { return f.gpu.Device().Properties().Name }

// Kind names what a profile of GPU index is good for, and describes the GPU.
func Kind(index int) (kind, about string, err error) {
	dev, err := cuda.Open(cuda.Config{Index: index})
	if err != nil {
		return "", "", err
	}
	p := dev.Properties()
	about = fmt.Sprintf("%s, %d MiB, driver %d.%d", p.Name, p.MemoryBytes>>20, p.DriverVersion/1000, p.DriverVersion%1000/10)
	return fmt.Sprintf("gpu/%s/layered", strings.ReplaceAll(strings.ToLower(p.Name), " ", "-")), about, dev.Close()
}

// OnGPU tells whether a loaded model runs on the GPU.
func (f *Fallback) OnGPU(m *device.Model) bool { return f.to[m] == device.Executor(f.gpu) }

// Load tries the GPU first. Only what the kernels do not support goes to the other executor: a model that
// does not fit, or a GPU that is lost, is an error.
func (f *Fallback) Load(m *device.Model, slots []*device.Slot) error {
	err := f.gpu.Load(m, slots)
	if err == nil {
		f.to[m] = f.gpu
		return nil
	}
	if f.other == nil || !errors.Is(err, layers.ErrUnsupported) {
		return err
	}
	if other := f.other.Load(m, slots); other != nil {
		return fmt.Errorf("%w; and on the other executor: %w", err, other)
	}
	f.to[m], f.why[m] = f.other, err
	return nil
}

// Aside says what the GPU's kernels do not support of a model that runs on the other executor.
func (f *Fallback) Aside(m *device.Model) error { return f.why[m] }

// Execute runs b where its model was loaded.
func (f *Fallback) Execute(b device.Batch) error {
	e := f.to[b.Model]
	if e == nil {
		return fmt.Errorf("execute %s: not loaded", b.Model.Name)
	}
	return e.Execute(b)
}

// Submit hands b to the GPU if its model was loaded there; another executor runs it in Wait.
func (f *Fallback) Submit(b device.Batch) error {
	switch e := f.to[b.Model]; e {
	case nil:
		return fmt.Errorf("execute %s: not loaded", b.Model.Name)
	case device.Executor(f.gpu):
		return f.gpu.Submit(b)
	}
	return nil
}

// Wait returns when b has ended.
func (f *Fallback) Wait(b device.Batch) error {
	if f.OnGPU(b.Model) {
		return f.gpu.Wait(b)
	}
	return f.to[b.Model].Execute(b)
}

// Close closes both.
func (f *Fallback) Close() error {
	err := f.gpu.Close()
	if f.other != nil {
		err = errors.Join(err, f.other.Close())
	}
	return err
}

// Arrived tells the GPU of rows of models that run there.
func (f *Fallback) Arrived(m *device.Model, s *device.Slot, k, from, to int) {
	if f.OnGPU(m) {
		f.gpu.Arrived(m, s, k, from, to)
	}
}

// Abandon tells the GPU that the rows of a slot are about to change.
func (f *Fallback) Abandon(m *device.Model, s *device.Slot) {
	if f.OnGPU(m) {
		f.gpu.Abandon(m, s)
	}
}

// Unpinned returns how many slots could not be pinned for the GPU.
func (f *Fallback) Unpinned() int { return f.gpu.Unpinned() }

// Memory returns what the GPU's executor moved.
func (f *Fallback) Memory() device.Memory { return f.gpu.Memory() }

// Libraries names what products and convolutions may use beside our kernels on GPU index; "" for nothing.
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
