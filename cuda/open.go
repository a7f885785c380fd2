package cuda

import "fmt"

// Supported reports whether this binary was built with the tag cuda. A GPU may still be absent.
func Supported() bool { return supported }

// Count returns the number of GPUs that the driver offers; ErrNotSupported without the tag or a driver.
func Count() (int, error) { return deviceCount() }

// Config of a real device.
type Config struct {
	Index          int   // the driver's device number
	PinnedBytesMax int64 // bound of the pinned pool; 0 takes 1 GiB
}

// Open opens a GPU. Without the tag, a driver or a device the error matches ErrNotSupported.
func Open(c Config) (*Device, error) {
	if c.Index < 0 || c.PinnedBytesMax < 0 {
		return nil, fmt.Errorf("open device: index %d, pinned bytes %d: must not be negative", c.Index, c.PinnedBytesMax)
	}
	if c.PinnedBytesMax == 0 {
		c.PinnedBytesMax = 1 << 30
	}

	drv, err := openDriver(c.Index)
	if err != nil {
		return nil, err
	}
	return newDevice(drv, c.PinnedBytesMax), nil
}
