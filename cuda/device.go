package cuda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Device is one GPU and all objects opened from it.
type Device struct {
	drv    driver
	sticky atomic.Int32 // the first sticky Code; 0 while healthy
	closed atomic.Bool
	live   counters
	pinned pinnedPool

	suspect   atomic.Bool  // a wait ended with ErrHung: frees have a time limit from then on
	stuck     atomic.Bool  // a free did not return: further frees are skipped
	abandoned atomic.Int64 // frees skipped or given up

	mu      sync.Mutex
	streams []*Stream // idle, under mu
	events  []*Event  // idle, under mu
}

// Live counts open objects. Every field is zero after an orderly end.
type Live struct {
	DeviceBytes, DeviceBlocks int64
	PinnedBytes, HostSlabs    int64 // slabs in use, and the pinned bytes that the pool holds, in use or not
	Registered                int64
	Shared                    int64 // blocks of other processes
	Streams, Events           int64
	Modules, Graphs           int64
}

type counters struct {
	deviceBytes, deviceBlocks, pinnedBytes, hostSlabs, registered, shared atomic.Int64
	streams, events, modules, graphs                                      atomic.Int64
}

func newDevice(drv driver, pinnedBytesMax int64) *Device {
	d := &Device{drv: drv}
	d.pinned.init(d, pinnedBytesMax)
	return d
}

// Properties returns the device's properties.
func (d *Device) Properties() Properties { return d.drv.properties() }

// Live returns the open counts now.
func (d *Device) Live() Live {
	c := &d.live
	return Live{DeviceBytes: c.deviceBytes.Load(), DeviceBlocks: c.deviceBlocks.Load(),
		PinnedBytes: c.pinnedBytes.Load(), HostSlabs: c.hostSlabs.Load(), Registered: c.registered.Load(), Shared: c.shared.Load(),
		Streams: c.streams.Load(), Events: c.events.Load(), Modules: c.modules.Load(), Graphs: c.graphs.Load()}
}

// MemoryInfo returns free and total bytes of device memory as the driver sees them, which includes other processes'
// use.
func (d *Device) MemoryInfo() (free, total int64, err error) {
	if err := d.checkUsable("memory info"); err != nil {
		return 0, 0, err
	}
	free, total, c := d.drv.memory()
	return free, total, d.checkCode(c, "memory info")
}

// Err returns the sticky error, nil while the device is healthy.
func (d *Device) Err() error {
	if c := Code(d.sticky.Load()); c != CodeSuccess {
		return &Error{Op: "device", Code: c}
	}
	return nil
}

// checkUsable refuses calls after Close or a sticky code (I2).
func (d *Device) checkUsable(op string) error {
	if d.closed.Load() {
		return fmt.Errorf("%s: %w", op, ErrClosed)
	}
	if c := Code(d.sticky.Load()); c != CodeSuccess {
		return &Error{Op: op, Code: c}
	}
	return nil
}

// checkCode records the first sticky code and returns the code as an error.
func (d *Device) checkCode(c Code, op string) error {
	if c == CodeSuccess {
		return nil
	}
	if c.Sticky() {
		d.sticky.CompareAndSwap(0, int32(c))
	}
	return &Error{Op: op, Code: c}
}

// Submit enqueues all commands of s in order and returns without waiting for them. On an error the enqueued commands
// are removed from s, so that a caller may submit the others again, which is useless after a sticky code.
func (d *Device) Submit(s *Submission) error {
	if err := d.checkUsable("submit"); err != nil {
		return err
	}
	if len(s.commands) == 0 {
		return nil
	}

	n, c := d.drv.submitCommands(s.commands, s.params)
	if c != CodeSuccess {
		// The first n are on the device: they must not run twice when the caller submits again.
		s.commands = s.commands[:copy(s.commands, s.commands[n:])]
	}
	return d.checkCode(c, "submit")
}

// Done reports whether the latest submitted Record of ev has completed; an event never recorded is done.
func (d *Device) Done(ev *Event) (bool, error) {
	if err := d.checkUsable("query event"); err != nil {
		return false, err
	}
	c := d.drv.query(ev.handle)
	if c == CodeNotReady {
		return false, nil
	}
	return c == CodeSuccess, d.checkCode(c, "query event")
}

// Wait returns when ev is done, or with an error that wraps ErrHung and the context's error.
func (d *Device) Wait(ctx context.Context, ev *Event) error {
	for tries := 0; ; tries++ {
		done, err := d.Done(ev)
		if done || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait for event: %w: %w", d.markHung(), err)
		}

		// A virtual device moves only when a waiter moves it: if it cannot move, waiting longer changes nothing.
		if !d.drv.pause(tries, 0) {
			return fmt.Errorf("wait for event: %w: nothing runs that could complete it", d.markHung())
		}
	}
}

// WaitFor is Wait with a limit instead of a context; it allocates nothing unless it fails.
func (d *Device) WaitFor(limit time.Duration, ev *Event) error { return d.WaitAbout(0, limit, ev) }

// WaitAbout is WaitFor for a caller that knows roughly how long it will take: the thread sleeps until shortly before
// that. A shorter wait ends late, so expected should be a low estimate.
func (d *Device) WaitAbout(expected, limit time.Duration, ev *Event) error {
	start := time.Now()
	for tries := 0; ; tries++ {
		done, err := d.Done(ev)
		if done || err != nil {
			return err
		}
		passed := time.Since(start)

		if passed > limit {
			return fmt.Errorf("wait for event for %v: %w", limit, d.markHung())
		}
		if !d.drv.pause(tries, min(expected, limit)-passed) {
			return fmt.Errorf("wait for event: %w: nothing runs that could complete it", d.markHung())
		}
	}
}

// Elapsed returns the device time between the completions of two recorded events.
func (d *Device) Elapsed(from, to *Event) (time.Duration, error) {
	if err := d.checkUsable("elapsed"); err != nil {
		return 0, err
	}
	t, c := d.drv.elapsed(from.handle, to.handle)
	return t, d.checkCode(c, "elapsed")
}

// markHung records and returns ErrHung.
func (d *Device) markHung() error {
	d.suspect.Store(true)
	return ErrHung
}

// Close ends the device. Idle pooled streams, events and slabs are freed; objects still held by callers are named in
// the error (I1). Close is idempotent. On a device that does not answer it gives up after closeMost, leaves memory to
// the end of the process and returns an error that wraps ErrHung.
func (d *Device) Close() error {
	if d.closed.Swap(true) {
		return nil
	}

	// A hanging GPU never completes its commands, so closing has a time limit.
	ended := make(chan Code, 1)
	var leak error
	go func() {
		d.emptyPools()
		if l := d.Live(); l != (Live{}) {
			leak = fmt.Errorf("close device: still open: %+v", l)
		}
		ended <- d.drv.closeDriver()
	}()

	limit := time.NewTimer(closeMost)
	defer limit.Stop()
	select {
	case c := <-ended:
		if Code(d.sticky.Load()) != CodeSuccess {
			c = CodeSuccess // a lost device may refuse to close; that is known already
		}
		if n := d.abandoned.Load(); n > 0 {
			leak = errors.Join(leak, fmt.Errorf("close device: %w: memory of %d frees is left to the end of the process", ErrHung, n))
		}
		return errors.Join(leak, codeError(c, "close device"))
	case <-limit.C:
		if e, ok := d.drv.(*emulated); ok {
			e.closeDriver() // ends the goroutine above; a hanging GPU keeps it
		}
		return fmt.Errorf("close device: gave up after %v: %w: its memory is left to the end of the process: %+v", closeMost, ErrHung, d.Live())
	}
}

// emptyPools frees the pools' idle objects.
func (d *Device) emptyPools() {
	d.mu.Lock()
	for _, s := range d.streams {
		d.drv.freeStream(s.handle)
		d.live.streams.Add(-1)
	}
	for _, e := range d.events {
		d.drv.freeEvent(e.handle)
		d.live.events.Add(-1)
	}

	d.streams, d.events = nil, nil
	d.mu.Unlock()

	d.pinned.trimIdle()
}
