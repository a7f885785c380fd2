package regions

import (
	"errors"
	"fmt"
	"sync"

	"downbeat.dev/cuda"
)

// pinnedMax bounds the pinned memory for copies of one device.
const pinnedMax = 64 << 20

// Devices are the GPUs of this host; the first region on a GPU opens it. The zero value is ready.
type Devices struct {
	mu   sync.Mutex
	open map[int]*cuda.Device // guarded by mu
}

// Count returns the number of GPUs; 0 without a driver.
func (s *Devices) Count() int {
	n, err := cuda.Count()
	if err != nil {
		return 0
	}
	return n
}

// OpenRegion opens the first size bytes of a handle's block, on a device.
func (s *Devices) OpenRegion(h cuda.Handle, device int, size int64) (*Region, error) {
	d, err := s.openDevice(device)
	if err != nil {
		return nil, err
	}

	block, err := d.OpenShared(h)
	if err != nil {
		return nil, err
	}

	// A copy beyond the owner's block would be an error of the whole device, which affects everything that this
	// process runs on it.
	if size < 1 || size > block.Bytes() {
		has := block.Bytes()
		block.Free()
		return nil, fmt.Errorf("byte_size %d: must be 1 to %d, which the block has", size, has)
	}
	return &Region{device: d, block: block, size: size}, nil
}

// openDevice opens a device once. A device that failed stays open, because commands under way may still use it.
func (s *Devices) openDevice(index int) (*cuda.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.open[index]; d != nil {
		return d, d.Err()
	}

	// Open a device only on demand: a context takes device memory, unless a backend of this process already has one.
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

// Close closes the devices. Its error names regions that are still open.
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
