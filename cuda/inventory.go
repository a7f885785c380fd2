package cuda

// GPU is what the management library says of one GPU; fields that a GPU does not tell are zero.
type GPU struct {
	Index       int
	Name, UUID  string
	Driver      string // version of the driver
	MemoryBytes int64
	MemoryFree  int64
	Utilization int  // percent of the last sample in which a kernel ran
	ClockMHz    int  // of the processors, now
	MIG         bool // split into instances
	MPS         int  // processes that run through the multi-process service
	Processes   int  // that compute on it, ours included
}

// Inventory lists the GPUs of this host without touching them. Without the tag cuda, or without
// libnvidia-ml on the host, the error matches ErrNotSupported. It may be called by any goroutine.
func Inventory() ([]GPU, error) { return inventory() }
