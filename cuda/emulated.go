package cuda

import (
	"fmt"
	"sync"
	"time"

	"downbeat.dev/cuda/pace"
)

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

	// A sticky code makes every later call fail, as on a device that is lost.
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

// newHandle issues a handle; handles are never reused.
func (m *emulated) newHandle() uint64 {
	m.next++
	return m.next
}

func (m *emulated) properties() Properties {
	return Properties{Name: m.cfg.Name, MemoryBytes: m.cfg.MemoryBytes, Multiprocessors: 1, Emulated: true}
}

// loadModule accepts any image: kernels run their Go form, found by name.
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

	// A hang keeps its caller waiting until the fault releases it, the device is lost, or it is closed.
	m.mu.Lock()
	for m.hangsNow() && !m.closed && m.lost == CodeSuccess {
		m.freed.Wait()
	}
}

// hangsNow reports whether the command on some engine never ends by itself.
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
