package cuda

import (
	"errors"
	"fmt"
)

// Handle names a block of device memory to other processes of the host: CUDA's cudaIpcMemHandle_t.
type Handle [64]byte

// Share returns the handle by which another process opens the block. The block must stay until that process
// has let go of it.
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

// ErrOwnMemory is why a handle cannot be opened by the process that made it.
var ErrOwnMemory = errors.New("the handle is of this process's own memory")

// OpenShared opens a block of another process. A block may be opened more than once; each is freed by itself.
func (d *Device) OpenShared(h Handle) (*Shared, error) {
	const op = "open shared memory"
	if err := d.checkUsable(op); err != nil {
		return nil, err
	}

	p, bytes, c := d.drv.openShared(h)
	// For a handle of this process the driver says that the context is invalid, which elsewhere is the device's end.
	if c == CodeInvalidContext {
		return nil, fmt.Errorf("%s: %w", op, ErrOwnMemory)
	}
	if c != CodeSuccess {
		return nil, d.checkCode(c, op)
	}

	d.live.shared.Add(1)
	return &Shared{dev: d, addr: Address(p), bytes: bytes}, nil
}

// Address returns where the block begins.
func (s *Shared) Address() Address { return s.addr }

// Bytes returns how many bytes the block has.
func (s *Shared) Bytes() int64 { return s.bytes }

// Free lets go of the block; no command may still use it. It is idempotent.
func (s *Shared) Free() {
	if s == nil || s.addr == 0 {
		return
	}
	s.dev.releaseLater(release{shared: uint64(s.addr)})
	s.addr = 0
	s.dev.live.shared.Add(-1)
}
