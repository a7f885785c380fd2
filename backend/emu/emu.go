package emu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/backend/accel"
	"downbeat.dev/backend/device"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
)

// The emulated device. Commands themselves cost nothing, so ℓ(b) may be as short as its copies.
const (
	memoryBytes = 80 << 30 // a bound, not a reservation
	bandwidth   = 25e9     // of copies in either direction
	commandTime = time.Nanosecond
	kernelName  = "model"
)

// Options of Open. The zero value is a healthy device.
type Options struct {
	Device string  // its name; "emulated" when empty
	Lanes  int     // of OpenLanes; 0: 1
	Plan   Planned // a later fault of the device
	Beside bool    // another executor runs real models: load only emulated ones
}

// Planned is a fault from some batch on. The zero value plans nothing.
type Planned struct {
	After uint64 // batches executed before it, on all lanes; those of Load do not count
	Fault Fault
}

// Executor is one emulated GPU, or a lane of one. Any goroutine may call Inject; accel.Executor states the rules for the
// other methods.
type Executor struct {
	*accel.Executor
	beside  bool
	machine *machine
	lane    int // its index
	module  *cuda.Module
	kernel  cuda.Kernel
	models  atomic.Pointer[[]*program] // by number; replaced by Load, read by kernels
}

// New returns an emulated GPU. The caller must Close it.
func New() (*Executor, error) { return Open(Options{}) }

// Open returns an emulated GPU. The caller must Close it.
func Open(o Options) (*Executor, error) {
	o.Lanes = 1
	all, err := OpenLanes(o)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// openLane opens a lane of a machine.
func openLane(o Options, m *machine, lane int) (*Executor, error) {
	e := &Executor{beside: o.Beside, machine: m, lane: lane}
	e.models.Store(new([]*program))

	dev, err := cuda.OpenEmulated(cuda.Emulation{Name: o.Device, MemoryBytes: int64(memoryBytes / len(m.running)), CopyInBandwidth: bandwidth, CopyOutBandwidth: bandwidth,
		CommandTime: commandTime, KernelTime: e.kernelTime, Kernels: map[string]cuda.KernelFunc{kernelName: e.runKernel}, Fault: e.goWrong})
	if err != nil {
		return nil, fmt.Errorf("emulated GPU: %w", err)
	}

	if e.module, err = dev.LoadModule([]byte(kernelName)); err == nil {
		e.kernel, err = e.module.Kernel(kernelName)
	}
	if err != nil {
		e.module.Free()
		return nil, errors.Join(fmt.Errorf("emulated GPU: %w", err), dev.Close())
	}

	e.Executor, err = accel.New(dev, accel.Config{Compile: e.compile, Movable: true, Cold: true, Close: e.module.Free})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Capabilities says that all emulated GPUs with as many lanes are of one kind, whatever their names.
func (e *Executor) Capabilities() device.Capabilities {
	c := e.Executor.Capabilities()
	c.Kind = device.LaneKind("emulated", len(e.machine.running))
	return c
}

// Submit starts b; see device.Executor.
func (e *Executor) Submit(b device.Batch) error {
	e.machine.countBatch()
	return e.Executor.Submit(b)
}

// program is an emulated model on one device.
type program struct {
	e      *Executor
	shared sync.Locker // guards the table of programs
	model  *device.Model
	number uint32
	use    float64  // of the GPU, see Use
	in     [][]byte // of the running batch: views of device memory; the kernel's
	out    [][]byte
	params params
}

// params is the kernel's argument: model number, rows, position of the slot's copy, and the duration of the batch's
// copies, which is a part of ℓ(b).
type params [24]byte

func (p *params) setParams(number uint32, rows int, base cuda.Address, copies time.Duration) {
	binary.LittleEndian.PutUint32(p[0:], number)
	binary.LittleEndian.PutUint32(p[4:], uint32(rows))
	binary.LittleEndian.PutUint64(p[8:], uint64(base))
	binary.LittleEndian.PutUint64(p[16:], uint64(copies))
}

func (e *Executor) compile(m *device.Model, programs sync.Locker) (accel.Program, error) {
	if e.beside && m.Source.Platform != repo.PlatformEmulated {
		return nil, fmt.Errorf("platform %s: %w", m.Source.Platform, device.ErrUnsupported)
	}
	if m.Profile == nil {
		return nil, errors.New("the model has no profile to emulate it by; give alpha_ms and beta_ms, or measure it with: downbeat profile")
	}
	if m.Varies {
		return nil, errors.New("BYTES tensors: an emulated GPU answers tensors of a fixed size only")
	}

	// Numbers of closed programs are reused. Kernels may be reading the table meanwhile.
	programs.Lock()
	defer programs.Unlock()
	all := slices.Clone(*e.models.Load())
	number := slices.Index(all, nil)
	if number < 0 {
		number, all = len(all), append(all, nil)
	}

	p := &program{e: e, shared: programs, model: m, number: uint32(number), use: Use(m.Source), in: make([][]byte, len(m.Inputs)), out: make([][]byte, len(m.Outputs))}
	all[number] = p
	e.models.Store(&all)
	return p, nil
}

// Enqueue adds the model's single kernel. Its tensors are at the slot's offsets, relative to the first input.
func (p *program) Enqueue(s *cuda.Submission, st *cuda.Stream, n int, inputs, _ []cuda.Address) error {
	// The copies' duration is a part of ℓ(b): the kernel takes only the rest.
	in, _ := s.CopyBytes()
	bytes := in + int64(n)*int64(p.model.OutBytes)
	copies := time.Duration(float64(bytes)/bandwidth*1e9) + time.Duration(s.Len()+len(p.out))*commandTime
	p.params.setParams(p.number, n, inputs[0], copies)
	s.Launch(st, p.e.kernel, cuda.Dim{X: 1, Y: 1, Z: 1}, cuda.Dim{X: 1, Y: 1, Z: 1}, 0, p.params[:])
	return nil
}

// Release does nothing.
func (p *program) Release(int) error { return nil }

// Succeed returns a program that answers alike: an emulated model's answer depends only on its inputs.
func (p *program) Succeed(m *device.Model, weights *repo.Model) (accel.Program, error) {
	if err := p.model.CheckUpdate(weights); err != nil {
		return nil, err
	}
	return p.e.compile(m, p.shared)
}

// Footprint is zero: an emulated model has no weights.
func (p *program) Footprint() device.Footprint { return device.Footprint{} }

// Close frees the number.
func (p *program) Close() error {
	// Kernels may be reading the table, so replace it instead of changing it.
	all := slices.Clone(*p.e.models.Load())
	all[p.number] = nil
	p.e.models.Store(&all)
	return nil
}

func (e *Executor) launchParams(l cuda.Launch) (p *program, rows int, base cuda.Address, copies time.Duration) {
	le := binary.LittleEndian
	all := *e.models.Load()
	return all[le.Uint32(l.Params)], int(le.Uint32(l.Params[4:])), cuda.Address(le.Uint64(l.Params[8:])), time.Duration(le.Uint64(l.Params[16:]))
}

// kernelTime returns the part of ℓ(rows) that the copies leave.
func (e *Executor) kernelTime(l cuda.Launch) time.Duration {
	p, rows, _, copies := e.launchParams(l)
	took := p.model.Profile.Exec(rows)
	if slow := e.machine.fault.Load().Slow; slow > 0 {
		took = time.Duration(float64(took) * slow)
	}
	return max(e.machine.shareTime(e.lane, p.use, took)-copies, 0)
}

// runKernel is the kernel: it writes each row's pattern. The device runs one kernel at a time.
func (e *Executor) runKernel(mem *cuda.DeviceMemory, l cuda.Launch) {
	p, rows, base, _ := e.launchParams(l)
	m := p.model

	// The program keeps the views' slices, so that a batch allocates nothing.
	view := func(views [][]byte, list []device.Tensor) {
		for k := range list {
			lo, hi := list[k].Span(0, rows)
			views[k] = mem.Bytes(base+cuda.Address(lo), int64(hi-lo))
		}
	}

	view(p.in, m.Inputs)
	view(p.out, m.Outputs)

	// A row's answer depends only on its own inputs, so tests notice mixed-up rows.
	for i := range rows {
		h := hashInputs(m, func(k int) []byte { return p.in[k][i*m.Inputs[k].Bytes:][:m.Inputs[k].Bytes] })
		for k := range m.Outputs {
			fillPattern(p.out[k][i*m.Outputs[k].Bytes:][:m.Outputs[k].Bytes], m.Outputs[k].Datatype, h+uint32(k))
		}
	}
}
