package cuda

import "unsafe"

// Device memory, and the host memory that the device may copy from or to. Allocations fail at a site or when the memory
// is full; freeing waits for the device, as the driver's calls do.

// hostBlock is host memory that the driver knows.
type hostBlock struct {
	mem        []byte
	pinned     bool
	registered bool // owned by another
}

func (m *emulated) allocDevice(bytes int64) (uint64, Code) {
	c := m.enterCall("alloc")
	defer m.mu.Unlock()
	if c != CodeSuccess {
		return 0, c
	}

	// Other processes may hold a part of the memory that this device has not given out.
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
	// Pinning is a site of its own, so that a test can fail it alone.
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

	// Pages are pinned, each once, so two registered blocks must not share one.
	const page = 4096
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
