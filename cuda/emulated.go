package cuda

import (
	"fmt"
	"sync"
	"time"
	"unsafe"

	"downbeat.dev/cuda/pace"
)

// Emulation configures an emulated GPU. It keeps real bytes: copies copy, and kernels run their Go form, so results
// are right; only the durations are modelled. The zero value of a field means the default in brackets.
type Emulation struct {
	Name             string        // ["emulated"]
	MemoryBytes      int64         // device memory [1 GiB]
	PinnedBytesMax   int64         // bound of the pinned pool [256 MiB]
	CopyInBandwidth  float64       // bytes per second of pinned copies to the device [25e9]
	CopyOutBandwidth float64       // [25e9]
	DeviceBandwidth  float64       // bytes per second of fills and copies within the device [1e12]
	PageableFactor   float64       // how much slower a pageable copy is [3]
	CommandTime      time.Duration // added to each copy and launch outside a graph [2 µs]

	// KernelTime is the duration of a launch; nil takes 10 µs for each.
	KernelTime func(l Launch) time.Duration
	// Kernels are the Go forms by name. A name that is missing is not found, as in a PTX module.
	Kernels map[string]KernelFunc
	// Virtual makes time stand still except for Device.Advance and Device.Wait, which jumps. In real time nothing
	// runs in the background: a caller that queries or waits performs the commands that have begun by then.
	Virtual bool
	// Taken returns the device memory that other processes hold now; nil: none. It must not call the device.
	Taken func() int64
	// Fault is called before every operation; nil injects nothing. It must not call the device.
	Fault func(site Site) Fault
}

// Launch is a launch as passed to KernelTime and a KernelFunc.
type Launch struct {
	Kernel      string
	Grid, Block Dim
	Params      []byte // the kernel's struct; valid during the call
}

// KernelFunc is a kernel in Go. An access through m outside allocated memory panics with a code, which becomes
// CodeIllegalAddress.
type KernelFunc func(m *DeviceMemory, l Launch)

// Site is one operation: its name ("alloc", "pin", "alloc host", "register", "new stream", "new event",
// "load module", "kernel", "submit", "capture", "copy in", "copy out", "copy", "fill", "launch",
// "graph") and how many of that name came before it.
type Site struct {
	Op string
	N  int
}

// Fault is the fault at a site. The zero value is no fault.
type Fault struct {
	Code  Code            // the operation fails; a sticky code makes the device unusable
	Hang  bool            // the command starts and never ends (commands only)
	Until <-chan struct{} // with Hang: it ends when the channel is closed
	Slow  time.Duration   // the command takes this much longer (commands only)
}

// OpenEmulated opens an emulated device.
func OpenEmulated(e Emulation) (*Device, error) {
	m, err := newEmulated(e)
	if err != nil {
		return nil, err
	}
	return newDevice(m, m.cfg.PinnedBytesMax), nil
}

func (e Emulation) withDefaults() Emulation {
	set := func(p *float64, v float64) {
		if *p <= 0 {
			*p = v
		}
	}

	if e.Name == "" {
		e.Name = "emulated"
	}
	if e.MemoryBytes <= 0 {
		e.MemoryBytes = 1 << 30
	}
	if e.PinnedBytesMax <= 0 {
		e.PinnedBytesMax = 256 << 20
	}
	if e.CommandTime <= 0 {
		e.CommandTime = 2 * time.Microsecond
	}

	set(&e.CopyInBandwidth, 25e9)
	set(&e.CopyOutBandwidth, 25e9)
	set(&e.DeviceBandwidth, 1e12)
	set(&e.PageableFactor, 3)
	return e
}

// emulated is the driver of an emulated device. mu guards everything. The goroutine that advances time holds turn, so
// that kernels run without mu and Submit does not wait for them.
type emulated struct {
	cfg   Emulation
	turn  sync.Mutex
	mu    sync.Mutex
	sites map[string]int
	lost  Code
	next  uint64 // the last handle issued

	mem     DeviceMemory
	running DeviceMemory // mem as seen by the command being performed; under turn
	host    map[uintptr]hostBlock
	streams map[uint64]*emStream
	order   []*emStream // streams in the order of their creation
	events  map[uint64]*emEvent
	modules map[uint64]bool
	kernels map[uint64]string
	graphs  map[uint64]emGraph

	now     time.Duration // since start; virtual, or the last reading of the clock
	start   time.Time
	engines [engineCount]emEngine
	seq     uint64

	timers []*pace.Timer // idle; real time only
	freed  *sync.Cond    // on mu: a hang ended or the device closed
	closed bool
}

type hostBlock struct {
	mem        []byte
	pinned     bool
	registered bool // owned by another
}

type emGraph struct {
	commands []command
	params   []byte
}

func newEmulated(e Emulation) (*emulated, error) {
	m := &emulated{cfg: e.withDefaults(), sites: map[string]int{}, host: map[uintptr]hostBlock{},
		streams: map[uint64]*emStream{}, events: map[uint64]*emEvent{}, modules: map[uint64]bool{},
		kernels: map[uint64]string{}, graphs: map[uint64]emGraph{}, start: time.Now()}

	// No address is near zero, so that an offset used as an address is illegal.
	m.mem.total = m.cfg.MemoryBytes
	m.mem.next = 1 << 40

	m.freed = sync.NewCond(&m.mu)
	// Virtual time never sleeps, so it needs no timer.
	if e.Virtual {
		return m, nil
	}

	t, err := pace.New()
	if err != nil {
		return nil, fmt.Errorf("open emulated device: %w", err)
	}
	m.timers = append(m.timers, t)
	return m, nil
}

// faultAt returns the fault at a site; call under mu.
func (m *emulated) faultAt(op string) Fault {
	if m.cfg.Fault == nil {
		return Fault{}
	}

	// Sites are counted by name, so that a test can fail the third copy and no other command.
	n := m.sites[op]
	m.sites[op] = n + 1

	f := m.cfg.Fault(Site{Op: op, N: n})

	if f.Code.Sticky() {
		m.lost = f.Code
	}
	return f
}

// enterCall starts every setup call: it takes mu and returns the device's state or a fault.
func (m *emulated) enterCall(op string) Code {
	m.mu.Lock()
	if m.closed {
		return CodeInvalidContext
	}
	if m.lost != CodeSuccess {
		return m.lost
	}
	return m.faultAt(op).Code
}

func (m *emulated) newHandle() uint64 {
	m.next++
	return m.next
}

func (m *emulated) properties() Properties {
	return Properties{Name: m.cfg.Name, MemoryBytes: m.cfg.MemoryBytes, Multiprocessors: 1, Emulated: true}
}

func (m *emulated) allocDevice(bytes int64) (uint64, Code) {
	c := m.enterCall("alloc")
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return 0, c
	}

	if bytes > m.free() {
		return 0, CodeOutOfMemory
	}
	return m.mem.alloc(bytes)
}

// free returns the unused device memory.
func (m *emulated) free() int64 {
	free := m.mem.total - m.mem.used
	if m.cfg.Taken != nil {
		free -= m.cfg.Taken()
	}
	return max(free, 0)
}

func (m *emulated) freeDevice(p uint64) Code {
	m.settleEnded()
	defer m.mu.Unlock()
	return m.mem.free(p)
}

func (m *emulated) memory() (int64, int64, Code) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.free(), m.mem.total, m.lost
}

func (m *emulated) allocHost(bytes int64, pinned bool) (unsafe.Pointer, Code) {
	op := "alloc host"
	if pinned {
		op = "pin"
	}

	c := m.enterCall(op)
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return nil, c
	}

	b := make([]byte, bytes)
	p := unsafe.Pointer(unsafe.SliceData(b))

	// The caller has only a bare pointer: this entry keeps the memory from the garbage collector.
	m.host[uintptr(p)] = hostBlock{mem: b, pinned: pinned}
	return p, CodeSuccess
}

func (m *emulated) freeHost(p unsafe.Pointer, _ int64, pinned bool) Code {
	// Unpinning waits for the device, as the driver's call does; pageable memory belongs only to the host.
	if pinned {
		m.settleEnded()
	} else {
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	delete(m.host, uintptr(p))
	return CodeSuccess
}

// Emulated memory is this process's alone.
func (m *emulated) shareDevice(uint64) (Handle, Code)       { return Handle{}, CodeNotSupported }
func (m *emulated) openShared(Handle) (uint64, int64, Code) { return 0, 0, CodeNotSupported }
func (m *emulated) closeShared(uint64) Code                 { return CodeNotSupported }

func (m *emulated) registerHost(p unsafe.Pointer, bytes int64) Code {
	c := m.enterCall("register")
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return c
	}

	const page = 4096 // pages are pinned, each once
	from, to := uintptr(p)/page, (uintptr(p)+uintptr(bytes)-1)/page
	for start, b := range m.host {
		if b.registered && from <= (start+uintptr(len(b.mem))-1)/page && start/page <= to {
			return CodeAlreadyPinned
		}
	}

	m.host[uintptr(p)] = hostBlock{mem: unsafe.Slice((*byte)(p), bytes), pinned: true, registered: true}
	return CodeSuccess
}

func (m *emulated) unregisterHost(p unsafe.Pointer) Code { return m.freeHost(p, 0, true) }

func (m *emulated) loadModule(image []byte) (uint64, Code) {
	c := m.enterCall("load module")
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return 0, c
	}

	h := m.newHandle()
	m.modules[h] = true
	return h, CodeSuccess
}

func (m *emulated) freeModule(h uint64) Code {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.modules, h)
	return CodeSuccess
}

func (m *emulated) kernel(module uint64, name string) (uint64, Code) {
	c := m.enterCall("kernel")
	defer m.mu.Unlock()
	switch {
	case c != CodeSuccess:
		return 0, c
	case !m.modules[module]:
		return 0, CodeInvalidHandle
	case m.cfg.Kernels[name] == nil:
		return 0, CodeNotFound
	}

	h := m.newHandle()
	m.kernels[h] = name
	return h, CodeSuccess
}

// settleEnded returns with mu held when all ended commands are performed and no command hangs: the driver's calls
// that free memory wait for the device too, possibly for ever.
func (m *emulated) settleEnded() {
	if !m.cfg.Virtual {
		m.catchUp()
	}
	m.mu.Lock()
	for m.hangsNow() && !m.closed && m.lost == CodeSuccess {
		m.freed.Wait()
	}
}

func (m *emulated) hangsNow() bool {
	for i := range m.engines {
		if m.engines[i].stream != nil && m.engines[i].hung {
			return true
		}
	}
	return false
}

func (m *emulated) closeDriver() Code {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	// A wait for a hang to end must not outlive the device.
	m.freed.Broadcast()

	for _, t := range m.timers {
		_ = t.Close()
	}
	m.timers = nil
	return CodeSuccess
}
