package cuda

import (
	"time"
	"unsafe"
)

// Limits of the wait for frees on a device that does not answer. The driver's calls that free memory wait for all
// running commands, which never end if the device hangs.
const (
	releaseMost = time.Second     // for one free, after a wait has ended with ErrHung
	closeMost   = 3 * time.Second // for Close
)

// release is a driver call that frees memory.
type release struct {
	device, module uint64 // handle, or 0
	shared         uint64 // address of another process's memory, or 0
	host           unsafe.Pointer
	bytes          int64
	registered     bool // host has another owner
	pinned         bool
}

func (r release) performRelease(drv driver) {
	switch {
	case r.device != 0:
		drv.freeDevice(r.device)
	case r.shared != 0:
		drv.closeShared(r.shared)
	case r.module != 0:
		drv.freeModule(r.module)
	case r.registered:
		drv.unregisterHost(r.host)
	default:
		drv.freeHost(r.host, r.bytes, r.pinned)
	}
}

// releaseLater frees r. Once the device is known to hang, the driver gets releaseMost. If the call does not return in
// that time, this memory and all memory freed later is left to the end of the process, and counted.
func (d *Device) releaseLater(r release) {
	switch {
	case d.stuck.Load():
		d.abandoned.Add(1)
		return
	case !d.suspect.Load() || r.host != nil && !r.registered && !r.pinned:
		r.performRelease(d.drv)
		return
	}

	// The driver of a hanging GPU may never return, so a goroutine makes the call. If it does not return, the device
	// is stuck.
	ended := make(chan struct{})
	go func() {
		r.performRelease(d.drv)
		close(ended)
	}()

	limit := time.NewTimer(releaseMost)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
		d.stuck.Store(true)
		d.abandoned.Add(1)
	}
}
