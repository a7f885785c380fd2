package cuda

// GPU is what the management library says of one GPU; fields that a GPU does not tell are zero.
type GPU struct {
	Index       int
	Name, UUID  string
	Driver      string // version of the driver
	MemoryBytes int64
	MemoryFree  int64
	Utilization int        // percent of the last sample in which a kernel ran
	ClockMHz    int        // of the processors, now
	Watts       float64    // that it takes now
	WattsMost   float64    // that it may take
	Joules      float64    // that it has taken since its driver was loaded
	MIG         bool       // split into instances: CUDA sees those, not the whole
	Instances   []Instance // with MIG
	Exclusive   bool       // one process at a time may use it, or none (compute mode)
	MPSDaemon   bool       // the multi-process service runs on this host
	MPS         int        // processes that run on this GPU through it
	Processes   int        // others that compute on it directly
}

// Instance is a part of a GPU in MIG mode.
type Instance struct {
	Name, UUID  string
	MemoryBytes int64
}

// Inventory lists the GPUs of this host without touching them. Without the tag cuda, or without
// libnvidia-ml on the host, the error matches ErrNotSupported. It may be called by any goroutine.
func Inventory() ([]GPU, error) { return listGPUs() }
