package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"downbeat.dev/cuda"
)

func virtual(t *testing.T, e cuda.Emulation) *cuda.Device {
	t.Helper()
	e.Virtual = true
	d, err := cuda.OpenEmulated(e)
	must(t, err)
	return d
}

// At 1e9 bytes per second 1 MB takes a millisecond.
var slowCopies = cuda.Emulation{CopyInBandwidth: 1e9, CopyOutBandwidth: 1e9, CommandTime: time.Nanosecond}

func TestCopiesOverlapAcrossEnginesOnly(t *testing.T) {
	d := virtual(t, slowCopies)
	defer d.Close()
	f := fix(t, d, 2_000_000)
	defer f.free()
	second, err := d.NewStream()
	must(t, err)
	defer second.Free()
	run := func(enqueue func(s *cuda.Submission)) time.Duration {
		var s cuda.Submission
		begin := d.Now()
		enqueue(&s)
		must(t, d.Submit(&s))
		finish(t, d, new(cuda.Submission), f.st)
		finish(t, d, new(cuda.Submission), second)
		return (d.Now() - begin).Round(10 * time.Microsecond)
	}
	mb := f.host.Bytes()[:1_000_000]
	both := run(func(s *cuda.Submission) {
		s.CopyIn(f.st, f.mem.Address(), mb)
		s.CopyOut(second, f.host.Bytes()[1_000_000:], f.mem.Address()+1_000_000)
	})
	same := run(func(s *cuda.Submission) {
		s.CopyIn(f.st, f.mem.Address(), mb)
		s.CopyIn(second, f.mem.Address()+1_000_000, f.host.Bytes()[1_000_000:])
	})
	if both != time.Millisecond || same != 2*time.Millisecond {
		t.Errorf("in and out took %v, want 1 ms; in and in %v, want 2 ms", both, same)
	}
}

func TestPageableCopiesAreSlower(t *testing.T) {
	e := slowCopies
	e.PinnedBytesMax = 1 << 20
	d := virtual(t, e)
	defer d.Close()
	f := fix(t, d, 2_000_000) // over the bound, so pageable
	defer f.free()
	if f.host.Pinned() || d.PinnedStats().Fallbacks != 1 || d.PinnedStats().Held != 0 {
		t.Fatalf("pinned %v, %+v", f.host.Pinned(), d.PinnedStats())
	}
	var s cuda.Submission
	s.CopyIn(f.st, f.mem.Address(), f.host.Bytes())
	finish(t, d, &s, f.st)
	if got := d.Now().Round(10 * time.Microsecond); got != 6*time.Millisecond {
		t.Errorf("took %v, want 6 ms", got)
	}
}

func TestKernelsOfOneStreamSeeEachOther(t *testing.T) {
	add := func(m *cuda.DeviceMemory, l cuda.Launch) {
		for i, b := range m.Bytes(cuda.Address(l.Params[0])<<40, 16) {
			m.Bytes(cuda.Address(l.Params[0])<<40, 16)[i] = b + l.Params[1]
		}
	}
	d := virtual(t, cuda.Emulation{Kernels: map[string]cuda.KernelFunc{"add": add},
		KernelTime: func(l cuda.Launch) time.Duration { return time.Duration(l.Grid.X) * time.Millisecond }})
	defer d.Close()
	f := fix(t, d, 16)
	defer f.free()
	m, err := d.LoadModule([]byte("x"))
	must(t, err)
	defer m.Free()
	if _, err := m.Kernel("sub"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("an unknown kernel was found: %v", err)
	}
	k, err := m.Kernel("add")
	must(t, err)
	base := byte(f.mem.Address() >> 40)
	var s cuda.Submission
	s.Fill(f.st, f.mem.Address(), 1, 16)
	s.Launch(f.st, k, cuda.Dim{X: 2, Y: 1, Z: 1}, cuda.Dim{X: 1, Y: 1, Z: 1}, 0, []byte{base, 3})
	s.Launch(f.st, k, cuda.Dim{X: 3, Y: 1, Z: 1}, cuda.Dim{X: 1, Y: 1, Z: 1}, 0, []byte{base, 4})
	s.CopyOut(f.st, f.host.Bytes(), f.mem.Address())
	finish(t, d, &s, f.st)
	if got := d.Now().Truncate(time.Millisecond); f.host.Bytes()[15] != 8 || got != 5*time.Millisecond {
		t.Errorf("value %d after %v, want 8 after 5 ms", f.host.Bytes()[15], got)
	}
}

// TestSpareWorkGivesWay: a kernel that is submitted while spare ones wait goes before them, after the one that runs.
func TestSpareWorkGivesWay(t *testing.T) {
	d := virtual(t, cuda.Emulation{Kernels: map[string]cuda.KernelFunc{"work": func(*cuda.DeviceMemory, cuda.Launch) {}},
		KernelTime: func(cuda.Launch) time.Duration { return 3 * time.Millisecond }})
	defer d.Close()
	m, err := d.LoadModule([]byte("x"))
	must(t, err)
	defer m.Free()
	k, err := m.Kernel("work")
	must(t, err)
	one := cuda.Dim{X: 1, Y: 1, Z: 1}

	// endOf returns when a batch ends that comes while one of two other streams runs its kernel and the other waits.
	endOf := func(open func() (*cuda.Stream, error)) time.Duration {
		began := d.Now()
		var s cuda.Submission
		var others []*cuda.Stream
		for range 2 {
			st, err := open()
			must(t, err)
			defer st.Free()
			others = append(others, st)
			s.Launch(st, k, one, one, 0, []byte{0})
		}
		must(t, d.Submit(&s))
		d.Advance(time.Millisecond)

		st, err := d.NewStream()
		must(t, err)
		defer st.Free()
		s.Reset()
		s.Launch(st, k, one, one, 0, []byte{0})
		finish(t, d, &s, st)
		took := d.Now() - began
		for _, other := range others {
			finish(t, d, new(cuda.Submission), other)
		}
		return took.Truncate(time.Millisecond)
	}
	if got := endOf(d.NewStream); got != 9*time.Millisecond {
		t.Errorf("behind other batches: %v, want 9 ms", got)
	}
	if got := endOf(d.NewSpareStream); got != 6*time.Millisecond {
		t.Errorf("behind spare work: %v, want 6 ms", got)
	}
}

// TestFaultAtEverySite fails each setup call of a small life in turn. Nothing leaks, and the error names the call.
func TestFaultAtEverySite(t *testing.T) {
	for _, code := range []cuda.Code{cuda.CodeOutOfMemory, cuda.CodeDeviceUnavailable} {
		for n := 0; ; n++ {
			calls := 0
			var hit string
			d := virtual(t, cuda.Emulation{Fault: func(s cuda.Site) cuda.Fault {
				calls++
				if calls == n+1 {
					hit = s.Op
					return cuda.Fault{Code: code}
				}
				return cuda.Fault{}
			}})
			err := smallLife(d)
			if cerr := d.Close(); cerr != nil || d.Live() != (cuda.Live{}) {
				t.Errorf("%v at %s: close: %v, live %+v", code, hit, cerr, d.Live())
			}
			if hit == "" {
				break
			}
			// The pool answers a failed pin with pageable memory, unless the device is lost.
			if err == nil && (hit != "pin" || code.Sticky()) {
				t.Errorf("%v at %s: no error", code, hit)
			}
			if code.Sticky() && err != nil && !errors.Is(err, cuda.ErrDeviceLost) {
				t.Errorf("%v at %s: %v", code, hit, err)
			}
		}
	}
}

// smallLife makes every kind of call and frees everything whatever happens.
func smallLife(d *cuda.Device) error {
	st, err := d.NewStream()
	if err != nil {
		return err
	}
	defer st.Free()
	ev, err := d.NewEvent()
	if err != nil {
		return err
	}
	defer ev.Free()
	arena, err := d.NewArena(1 << 16)
	if err != nil {
		return err
	}
	defer arena.Close()
	slab, err := d.AllocHost(4096)
	if err != nil {
		return err
	}
	defer slab.Free()
	mapped, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer unix.Munmap(mapped)
	reg, err := d.Register(mapped)
	if err != nil {
		return err
	}
	defer reg.Free()
	m, err := d.LoadModule([]byte(".version 6.0\n.target sm_70\n.address_size 64\n"))
	if err != nil {
		return err
	}
	defer m.Free()
	var s cuda.Submission
	addr, err := arena.Alloc(&s, st, 4096)
	if err != nil {
		return err
	}
	s.Fill(st, addr, 1, 4096)
	s.CopyIn(st, addr, slab.Bytes())
	g, err := d.Capture(st, &s)
	if err != nil {
		return err
	}
	defer g.Free()
	s.Graph(st, g)
	s.CopyOut(st, slab.Bytes(), addr)
	s.Record(st, ev)
	if err := d.Submit(&s); err != nil {
		return err
	}
	return d.Wait(context.Background(), ev)
}

func TestHangEndsWithTheContext(t *testing.T) {
	for _, virtualTime := range []bool{true, false} {
		d, err := cuda.OpenEmulated(cuda.Emulation{Virtual: virtualTime, Fault: func(s cuda.Site) cuda.Fault {
			return cuda.Fault{Hang: s.Op == "fill"}
		}})
		must(t, err)
		f := fix(t, d, 4096)
		ev, err := d.NewEvent()
		must(t, err)
		var s cuda.Submission
		s.Fill(f.st, f.mem.Address(), 1, 4096)
		s.Record(f.st, ev)
		must(t, d.Submit(&s))
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if err := d.Wait(ctx, ev); !errors.Is(err, cuda.ErrHung) { // I5
			t.Errorf("virtual %v: %v", virtualTime, err)
		}
		cancel()
		ev.Free()
		began := time.Now()
		f.free() // the driver's call would wait for the fill forever
		if err := d.Close(); !errors.Is(err, cuda.ErrHung) || !strings.Contains(err.Error(), "left to the end of the process") {
			t.Errorf("virtual %v: close: %v", virtualTime, err)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("virtual %v: closing took %v", virtualTime, took)
		}
	}
}

// TestCloseGivesUpOnAHungDevice shows that Close itself finds out that the device hangs when nothing has waited
// before.
func TestCloseGivesUpOnAHungDevice(t *testing.T) {
	d := virtual(t, cuda.Emulation{Fault: func(s cuda.Site) cuda.Fault { return cuda.Fault{Hang: s.Op == "copy in"} }})
	f := fix(t, d, 4096)
	var s cuda.Submission
	s.CopyIn(f.st, f.mem.Address(), f.host.Bytes())
	must(t, d.Submit(&s))
	f.host.Free() // goes to the pool, so the driver is not called
	f.st.Free()
	if err := d.Close(); !errors.Is(err, cuda.ErrHung) || !strings.Contains(err.Error(), "gave up") || !strings.Contains(err.Error(), "DeviceBytes:4096") {
		t.Errorf("close: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("a second close: %v", err)
	}
}

// TestAHangThatEnds shows that the commands behind a hang continue when it ends.
func TestAHangThatEnds(t *testing.T) {
	until := make(chan struct{})
	d, err := cuda.OpenEmulated(cuda.Emulation{Fault: func(s cuda.Site) cuda.Fault {
		return cuda.Fault{Hang: s.Op == "fill" && s.N == 0, Until: until}
	}})
	must(t, err)
	f := fix(t, d, 4096)
	ev, err := d.NewEvent()
	must(t, err)
	var s cuda.Submission
	s.Fill(f.st, f.mem.Address(), 7, 4096)
	s.CopyOut(f.st, f.host.Bytes(), f.mem.Address())
	s.Record(f.st, ev)
	must(t, d.Submit(&s))
	if err := d.WaitFor(20*time.Millisecond, ev); !errors.Is(err, cuda.ErrHung) {
		t.Errorf("while it hangs: %v", err)
	}
	close(until)
	must(t, d.WaitFor(10*time.Second, ev))
	if f.host.Bytes()[4095] != 7 {
		t.Error("the fill was not performed")
	}
	ev.Free()
	f.free()
	must(t, d.Close())
}

// TestRealTimeFollowsTheModel shows that in real time an event completes when the model says, whoever looks and
// however late. Commands submitted later do not begin before their submission.
func TestRealTimeFollowsTheModel(t *testing.T) {
	d, err := cuda.OpenEmulated(cuda.Emulation{CopyInBandwidth: 1e9, CommandTime: time.Nanosecond})
	must(t, err)
	f := fix(t, d, 3_000_000)
	var evs [4]*cuda.Event
	for i := range evs {
		evs[i], err = d.NewEvent()
		must(t, err)
	}
	var s cuda.Submission
	s.Record(f.st, evs[0])
	s.CopyIn(f.st, f.mem.Address(), f.host.Bytes()) // 3 ms
	s.Record(f.st, evs[1])
	must(t, d.Submit(&s))
	time.Sleep(20 * time.Millisecond) // nothing looks at the device
	s.Reset()
	s.Record(f.st, evs[2])
	s.CopyIn(f.st, f.mem.Address(), f.host.Bytes())
	s.Record(f.st, evs[3])
	must(t, d.Submit(&s))
	must(t, d.WaitFor(10*time.Second, evs[3]))
	for i, want := range []time.Duration{3 * time.Millisecond, 17 * time.Millisecond, 3 * time.Millisecond} {
		took, err := d.Elapsed(evs[i], evs[i+1])
		must(t, err)
		if i == 1 && took < want || i != 1 && took.Round(10*time.Microsecond) != want {
			t.Errorf("from event %d to the next: %v, want %v", i, took, want)
		}
	}
	for _, ev := range evs {
		ev.Free()
	}
	f.free()
	must(t, d.Close())
}

func TestStickyErrorStays(t *testing.T) {
	d := virtual(t, cuda.Emulation{})
	f := fix(t, d, 4096)
	var s cuda.Submission
	s.Fill(f.st, f.mem.Address(), 1, 1<<20) // runs past the block
	ev, err := d.NewEvent()
	must(t, err)
	s.Record(f.st, ev)
	must(t, d.Submit(&s))
	err = d.Wait(context.Background(), ev)
	var e *cuda.Error
	if !errors.As(err, &e) || e.Code != cuda.CodeIllegalAddress || !errors.Is(err, cuda.ErrDeviceLost) {
		t.Errorf("wait: %v", err)
	}
	if _, err := d.Alloc(1); !errors.Is(err, cuda.ErrDeviceLost) || d.Err() == nil { // I2
		t.Errorf("alloc after the error: %v", err)
	}
	ev.Free()
	f.free()
	must(t, d.Close())
}

func TestUseAfterFreeIsSeen(t *testing.T) {
	d := virtual(t, cuda.Emulation{})
	f := fix(t, d, 4096)
	var s cuda.Submission
	addr := f.mem.Address()
	f.mem.Free()
	s.CopyIn(f.st, addr, f.host.Bytes())
	must(t, d.Submit(&s))
	d.Advance(time.Second)

	// The copy has run by now, so the next call that asks the device gets the error.
	must(t, d.Submit(oneFill(d)))
	var e *cuda.Error
	if _, err := d.NewEvent(); !errors.As(err, &e) || e.Code != cuda.CodeIllegalAddress || !errors.Is(err, cuda.ErrDeviceLost) {
		t.Errorf("after a copy to freed memory: %v", err)
	}
	f.free()
	must(t, d.Close())
}

func TestLeaksAreNamed(t *testing.T) {
	d := virtual(t, cuda.Emulation{})
	_, err := d.Alloc(777)
	must(t, err)
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "still open: ") || !strings.Contains(err.Error(), "DeviceBytes:777") || d.Live().DeviceBytes != 777 {
		t.Errorf("close: %v, want it to name 777 bytes of the device's memory", err)
	}
}

func TestSlabsWithinTheBound(t *testing.T) {
	d := virtual(t, cuda.Emulation{PinnedBytesMax: 64 << 10})
	var held []*cuda.Slab
	for i := range 40 {
		s, err := d.AllocHost(int64(1000 + 500*i))
		must(t, err)
		if int64(len(s.Bytes())) != int64(1000+500*i) {
			t.Fatalf("slab %d has %d bytes", i, len(s.Bytes()))
		}
		s.Bytes()[len(s.Bytes())-1] = 1
		held = append(held, s)
		if p := d.PinnedStats(); p.Held > p.Max {
			t.Fatalf("held %d over %d", p.Held, p.Max)
		}
		if i%3 == 2 {
			held[0].Free()
			held = held[1:]
		}
	}
	if p := d.PinnedStats(); p.Fallbacks == 0 || p.HighWater == 0 {
		t.Errorf("stats %+v", p)
	}
	for _, s := range held {
		s.Free()
	}
	must(t, d.Close())
}

func TestArenaReusesInStreamOrder(t *testing.T) {
	d := virtual(t, slowCopies)
	defer d.Close()
	f := fix(t, d, 1_000_000)
	defer f.free()
	second, err := d.NewStream()
	must(t, err)
	defer second.Free()
	a, err := d.NewArena(1_000_000)
	must(t, err)
	defer a.Close()
	var s cuda.Submission
	first, err := a.Alloc(&s, f.st, 1_000_000)
	must(t, err)
	s.CopyIn(f.st, first, f.host.Bytes())
	if _, err := a.Alloc(&s, f.st, 256); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Errorf("a full arena gave memory: %v", err)
	}
	must(t, a.Free(first, nil))
	if err := a.Free(first, nil); err == nil || !strings.Contains(err.Error(), "not in use") {
		t.Errorf("freed twice: %v", err)
	}
	same, err := a.Alloc(&s, f.st, 1000)
	must(t, err)
	other, err := a.Alloc(&s, second, 1000)
	must(t, err)
	if same == other {
		t.Error("one block for two")
	}
	s.Fill(second, other, 7, 1000)
	finish(t, d, &s, second)
	if got := d.Now(); got < time.Millisecond { // the fill waited for the copy of the other stream
		t.Errorf("the other stream was done after %v", got)
	}
	if st := a.Stats(); st.SameStream != 1 || st.CrossStream != 1 || st.Refused != 1 || st.InUse != 2048 {
		t.Errorf("stats %+v", st)
	}
	must(t, a.Free(same, nil))
	must(t, a.Free(other, nil))
}

func TestCodesHaveNames(t *testing.T) {
	err := error(&cuda.Error{Op: "alloc of 5 bytes", Code: cuda.CodeOutOfMemory})
	if got := fmt.Sprint(err); got != "alloc of 5 bytes: out of memory" {
		t.Error(got)
	}
	if cuda.Code(12345).String() != "code 12345" {
		t.Error(cuda.Code(12345))
	}
}

func TestNoDeviceIsNotSupported(t *testing.T) {
	if _, err := cuda.Open(cuda.Config{Index: -1}); err == nil || !strings.Contains(err.Error(), "must not be negative") {
		t.Errorf("device -1 was opened: %v", err)
	}
	if _, err := cuda.Open(cuda.Config{Index: 4096}); err == nil || !strings.Contains(err.Error(), "open device") {
		t.Errorf("device 4096 was opened: %v", err)
	}
	if n, err := cuda.Count(); err != nil && !errors.Is(err, cuda.ErrNotSupported) || n < 0 {
		t.Errorf("count %d, %v", n, err)
	}
}

func TestInventoryWithoutALibraryIsNotSupported(t *testing.T) {
	gpus, err := cuda.Inventory()
	if err != nil && !errors.Is(err, cuda.ErrNotSupported) || err == nil && len(gpus) > 0 && gpus[0].Name == "" {
		t.Errorf("%+v, %v", gpus, err)
	}
}
