package regions

import (
	"errors"
	"fmt"
	"sync"

	"downbeat.dev/cuda"
)

// pinnedMax bounds the pinned memory that copies of one device go through.
const pinnedMax = 64 << 20

// Devices are the GPUs of this host, each opened when a region of it is opened first. The zero value is ready.
type Devices struct {
	mu   sync.Mutex
	open map[int]*cuda.Device // guarded by mu
}

// Count returns how many there are: 0 without a driver, too.
func (s *Devices) Count() int {
	n, err := cuda.Count()
	if err != nil {
		return 0
	}
	return n
}

// OpenRegion opens the first size bytes of the block that a handle names, on a device.
func (s *Devices) OpenRegion(h cuda.Handle, device int, size int64) (*Region, error) {
	d, err := s.openDevice(device)
	if err != nil {
		return nil, err
	}

	block, err := d.OpenShared(h)
	if err != nil {
		return nil, err
	}

	// A copy beyond the owner's block would be an error of the whole device, with all that this process runs on it.
	if size < 1 || size > block.Bytes() {
		has := block.Bytes()
		block.Free()
		return nil, fmt.Errorf("byte_size %d: must be 1 to %d, which the block has", size, has)
	}
	return &Region{device: d, block: block, size: size}, nil
}

// openDevice opens a device once. A device that cannot be used any more is left as it is: what is under way on it
// may use it still.
func (s *Devices) openDevice(index int) (*cuda.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.open[index]; d != nil {
		return d, d.Err()
	}

	// Not before it is wanted: a context takes memory of the device, unless a backend of this process has one.
	d, err := cuda.Open(cuda.Config{Index: index, PinnedBytesMax: pinnedMax})
	if err != nil {
		return nil, err
	}
	if s.open == nil {
		s.open = map[int]*cuda.Device{}
	}

	s.open[index] = d
	return d, nil
}

// Close lets go of the devices. Its error names regions that are still open.
func (s *Devices) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()

	var errs []error
	for _, d := range s.open {
		errs = append(errs, d.Close())
	}
	s.open = nil
	return errors.Join(errs...)
}
