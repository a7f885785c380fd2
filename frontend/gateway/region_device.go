package gateway

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
)

// DeviceMemory opens device memory that other processes of this host share. Any goroutine may call its methods.
type DeviceMemory interface {
	// Count returns the number of devices; 0: no device memory can be opened.
	Count() int
	// OpenRegion opens the first size bytes of the memory that a handle (a cudaIpcMemHandle_t) names, on a device.
	OpenRegion(handle [HandleBytes]byte, device int, size int64) (DeviceRegion, error)
}

// DeviceRegion is device memory that belongs to another process. Any goroutine may read and write it until Close.
type DeviceRegion interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// HandleBytes is the size of the handle with which processes share device memory.
const HandleBytes = 64

func errCUDA() *fault {
	return refusalFault(http.StatusBadRequest, codes.Unimplemented, "invalid_argument",
		"CUDA shared memory is not supported here: there is no GPU whose memory this gateway can open; register system shared memory")
}

// countDevices returns the number of devices.
func (s *regions) countDevices() int {
	if s.devices == nil {
		return 0
	}
	return s.devices.Count()
}

// registerDevice opens device memory and registers it under a name.
func (s *regions) registerDevice(name string, handle []byte, device int64, size uint64) *fault {
	n := s.countDevices()
	switch {
	case n == 0:
		return errCUDA()
	case s.off:
		return invalidFault(regionsOff)
	case !isRegionName(name):
		return nameFault(name)
	case len(handle) != HandleBytes:
		return invalidFault("region %q: raw_handle: %d bytes: must be the %d of a cudaIpcMemHandle_t", name, len(handle), HandleBytes)
	case device < 0 || device >= int64(n):
		return invalidFault("region %q: device_id %d: must be 0 to %d", name, device, n-1)
	case size == 0 || size > math.MaxInt64:
		return invalidFault("region %q: byte_size %d: must be 1 to %d", name, size, int64(math.MaxInt64))
	}

	memory, err := s.devices.OpenRegion([HandleBytes]byte(handle), int(device), int64(size))
	if err != nil {
		return invalidFault("region %q: raw_handle of %d bytes on device %d: Unable to open shared memory region: %v", name, size, device, err)
	}

	r := &region{name: strings.Clone(name), size: int64(size), device: memory, deviceID: int(device)}
	r.users.Store(1)
	if f := s.addRegion(r); f != nil {
		r.releaseRegion()
		return f
	}
	return nil
}

// deviceFault returns the fault for a failed copy between host and device. The request was checked before, so the
// failure is the device's or that of its owner's memory.
func (r *region) deviceFault(at int64, n int, err error) error {
	if err == nil {
		return nil
	}
	return refusalFault(http.StatusInternalServerError, codes.Internal, "internal",
		fmt.Sprintf("shared memory region %q: bytes %d to %d cannot be copied from or to device %d: %v", r.name, at, at+int64(n), r.deviceID, err))
}
