package cuda

import (
	"time"
	"unsafe"
)

// How long frees are waited for on a device that does not answer: the driver's calls that free memory
// wait for everything under way, which never ends when the device hangs.
const (
	releaseMost = time.Second     // one free, once a wait has ended with ErrHung
	closeMost   = 3 * time.Second // Close
)

// release is a call of the driver that frees memory.
type release struct {
	device, module uint64 // handle, or 0
	shared         uint64 // address of another process's memory, or 0
	host           unsafe.Pointer
	bytes          int64
	registered     bool // host is another owner's
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

// releaseLater frees. Once the device is known to hang the driver is given releaseMost; when it does not return,
// this memory and all that is freed later is left to the end of the process, and counted.
func (d *Device) releaseLater(r release) {
	switch {
	case d.stuck.Load():
		d.abandoned.Add(1)
		return
	case !d.suspect.Load() || r.host != nil && !r.registered && !r.pinned:
		r.performRelease(d.drv)
		return
	}

	// A driver whose GPU hangs may never return: the free is left to a goroutine, and the device is known to be
	// stuck.
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
