package cuda

import "time"

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

// withDefaults returns the configuration with the defaults in brackets instead of zeros.
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
