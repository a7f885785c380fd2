package cuda

// GPU is the management library's description of one GPU. Fields that a GPU does not report are zero.
type GPU struct {
	Index       int
	Name, UUID  string
	Driver      string // version of the driver
	MemoryBytes int64
	MemoryFree  int64
	Utilization int        // percent of the last sample in which a kernel ran
	ClockMHz    int        // of the processors, now
	Watts       float64    // the power that it takes now
	WattsMost   float64    // the power that it may take
	Joules      float64    // the energy since its driver was loaded
	MIG         bool       // split into instances; CUDA sees the instances, not the whole GPU
	Instances   []Instance // with MIG
	Exclusive   bool       // only one process at a time may use it, or none (compute mode)
	MPSDaemon   bool       // the multi-process service runs on this host
	MPS         int        // processes that use this GPU through it
	Processes   int        // processes that use it directly
}

// Instance is a part of a GPU in MIG mode.
type Instance struct {
	Name, UUID  string
	MemoryBytes int64
}

// Inventory lists the GPUs of this host without using them. Without the tag cuda, or without libnvidia-ml on the
// host, the error matches ErrNotSupported. Any goroutine may call it.
func Inventory() ([]GPU, error) { return listGPUs() }
