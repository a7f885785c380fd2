package cuda

import (
	"fmt"
	"unsafe"
)

// Memory is a block of device memory.
type Memory struct {
	dev   *Device
	addr  Address
	bytes int64
}

// Alloc returns bytes of device memory, aligned to 256.
func (d *Device) Alloc(bytes int64) (*Memory, error) {
	if err := d.checkUsable("alloc"); err != nil {
		return nil, err
	}
	if bytes <= 0 {
		return nil, &Error{Op: fmt.Sprintf("alloc of %d bytes", bytes), Code: CodeInvalidValue}
	}

	p, c := d.drv.allocDevice(bytes)
	if c != CodeSuccess {
		return nil, d.checkCode(c, fmt.Sprintf("alloc of %d bytes of device memory", bytes))
	}

	d.live.deviceBytes.Add(bytes)
	d.live.deviceBlocks.Add(1)
	return &Memory{dev: d, addr: Address(p), bytes: bytes}, nil
}

// Address returns the start of the block.
func (m *Memory) Address() Address { return m.addr }

// Bytes returns the block's size.
func (m *Memory) Bytes() int64 { return m.bytes }

// Free frees the block at once; no command may still use it. Free is idempotent.
func (m *Memory) Free() {
	if m == nil || m.addr == 0 {
		return
	}

	m.dev.releaseLater(release{device: uint64(m.addr)})

	// Memory that the driver did not free counts as abandoned, not as live.
	m.addr = 0
	m.dev.live.deviceBytes.Add(-m.bytes)
	m.dev.live.deviceBlocks.Add(-1)
}

// Registered is host memory with another owner, the data plane, pinned for the device's copies.
type Registered struct {
	dev *Device
	p   unsafe.Pointer
}

// Register pins mem, which must not lie in Go's heap: it must be mapped memory or C memory.
func (d *Device) Register(mem []byte) (*Registered, error) {
	if err := d.checkUsable("register"); err != nil {
		return nil, err
	}
	if len(mem) == 0 {
		return nil, &Error{Op: "register: no memory", Code: CodeInvalidValue}
	}

	p := unsafe.Pointer(unsafe.SliceData(mem))
	if c := d.drv.registerHost(p, int64(len(mem))); c != CodeSuccess {
		return nil, d.checkCode(c, fmt.Sprintf("register %d bytes of host memory", len(mem)))
	}

	d.live.registered.Add(1)
	return &Registered{dev: d, p: p}, nil
}

// Free unpins the memory; no copy may still use it. Free is idempotent.
func (r *Registered) Free() {
	if r == nil || r.p == nil {
		return
	}

	r.dev.releaseLater(release{host: r.p, registered: true})
	r.p = nil
	r.dev.live.registered.Add(-1)
}
