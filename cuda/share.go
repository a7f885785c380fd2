package cuda

import (
	"errors"
	"fmt"
)

// Handle identifies a block of device memory to other processes of the host: CUDA's cudaIpcMemHandle_t.
type Handle [64]byte

// Share returns the handle with which another process opens the block. The block must stay allocated until that
// process has freed it.
func (m *Memory) Share() (Handle, error) {
	if err := m.dev.checkUsable("share memory"); err != nil {
		return Handle{}, err
	}
	h, c := m.dev.drv.shareDevice(uint64(m.addr))
	return h, m.dev.checkCode(c, fmt.Sprintf("share %d bytes of device memory", m.bytes))
}

// Shared is a block of device memory that another process owns.
type Shared struct {
	dev   *Device
	addr  Address
	bytes int64
}

// ErrOwnMemory: a process cannot open a handle that it made itself.
var ErrOwnMemory = errors.New("the handle is of this process's own memory")

// OpenShared opens a block of another process. A block may be opened several times; each result is freed separately.
func (d *Device) OpenShared(h Handle) (*Shared, error) {
	const op = "open shared memory"
	if err := d.checkUsable(op); err != nil {
		return nil, err
	}

	p, bytes, c := d.drv.openShared(h)
	// For a handle of this process the driver reports an invalid context, which anywhere else means that the device
	// is lost.
	if c == CodeInvalidContext {
		return nil, fmt.Errorf("%s: %w", op, ErrOwnMemory)
	}
	if c != CodeSuccess {
		return nil, d.checkCode(c, op)
	}

	d.live.shared.Add(1)
	return &Shared{dev: d, addr: Address(p), bytes: bytes}, nil
}

// Address returns the start of the block.
func (s *Shared) Address() Address { return s.addr }

// Bytes returns the size of the block.
func (s *Shared) Bytes() int64 { return s.bytes }

// Free closes the block; no command may still use it. Free is idempotent.
func (s *Shared) Free() {
	if s == nil || s.addr == 0 {
		return
	}
	s.dev.releaseLater(release{shared: uint64(s.addr)})
	s.addr = 0
	s.dev.live.shared.Add(-1)
}
