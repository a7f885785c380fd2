package cuda

import (
	"time"
	"unsafe"
)

// driver is implemented by the CUDA driver (tag cuda) and by the emulation. Everything above it (pools, counters,
// sticky errors) is shared, so CI runs the production code. Handles are opaque and never zero. Any goroutine may call
// any method. Results are codes, not errors, so that success costs nothing.
type driver interface {
	properties() Properties
	allocDevice(bytes int64) (uint64, Code)
	freeDevice(ptr uint64) Code
	memory() (free, total int64, c Code)

	shareDevice(ptr uint64) (Handle, Code)
	openShared(h Handle) (ptr uint64, bytes int64, c Code)
	closeShared(ptr uint64) Code

	allocHost(bytes int64, pinned bool) (unsafe.Pointer, Code)
	freeHost(p unsafe.Pointer, bytes int64, pinned bool) Code
	registerHost(p unsafe.Pointer, bytes int64) Code
	unregisterHost(p unsafe.Pointer) Code

	newStream(spare bool) (uint64, Code)
	freeStream(uint64) Code
	newEvent() (uint64, Code)
	freeEvent(uint64) Code
	query(event uint64) Code // success, CodeNotReady or an error
	elapsed(from, to uint64) (time.Duration, Code)

	loadModule(image []byte) (uint64, Code)
	freeModule(uint64) Code
	kernel(module uint64, name string) (uint64, Code)

	submitCommands(commands []command, params []byte) (enqueued int, c Code)
	capture(stream uint64, commands []command, params []byte) (uint64, Code)
	freeGraph(uint64) Code

	// pause passes the time between two queries of a wait; left is the expected remaining time (0 or less if
	// unknown). It returns false when nothing can ever change (virtual time).
	pause(tries int, left time.Duration) bool
	closeDriver() Code
}

// Properties describes a device.
type Properties struct {
	Name            string
	Index           int
	MemoryBytes     int64
	ComputeMajor    int
	ComputeMinor    int
	Multiprocessors int
	DriverVersion   int // 12040 is 12.4; 0 for the emulation
	Emulated        bool
}
