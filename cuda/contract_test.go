package cuda_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"downbeat.dev/cuda"
)

// contract lists the tests that every device passes, emulated or not.
var contract = []struct {
	name string
	run  func(t *testing.T, d *cuda.Device)
}{
	{"copies return what they took", copiesRoundTrip},
	{"a stream keeps its order", streamKeepsOrder},
	{"a wait orders two streams", waitOrdersStreams},
	{"a spare stream does its work", spareStreamWorks},
	{"an event never recorded is done", eventNeverRecorded},
	{"elapsed grows with the work", elapsedGrows},
	{"a graph does what was captured", graphReplays},
	{"wait ends with its context", waitEndsWithContext},
	{"host slabs are reused", slabsAreReused},
	{"bad arguments are refused", badArguments},
	{"out of memory is an error and leaves no trace", outOfMemory},
	{"submit allocates nothing", submitAllocatesNothing},
}

// TestOutOfMemoryAtEveryCall fails each call of a small life in turn, between the device and its driver: on the
// emulation and, if there is one, on the real driver.
func TestOutOfMemoryAtEveryCall(t *testing.T) {
	for name, open := range map[string]func() (*cuda.Device, error){
		"emulated": func() (*cuda.Device, error) { return cuda.OpenEmulated(cuda.Emulation{}) },
		"gpu":      func() (*cuda.Device, error) { return cuda.Open(cuda.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			for n := 0; ; n++ {
				d, err := open()
				skipIfNotSupported(t, err)
				must(t, err)
				hit := cuda.FailNth(d, n)
				err = smallLife(d)
				if err == nil && hit() != "" && hit() != "alloc host" { // a failed pin ends in pageable memory
					t.Errorf("call %d (%s): no error", n, hit())
				}
				if err != nil && (hit() == "" || !errors.Is(err, cuda.ErrOutOfMemory)) {
					t.Errorf("call %d (%s): %v", n, hit(), err)
				}
				if err := d.Close(); err != nil || d.Live() != (cuda.Live{}) {
					t.Errorf("call %d (%s): close: %v, live %+v", n, hit(), err, d.Live())
				}
				if hit() == "" {
					break
				}
			}
		})
	}
}

func TestContractEmulated(t *testing.T) {
	for _, virtual := range []bool{true, false} {
		name := map[bool]string{true: "virtual", false: "real time"}[virtual]
		t.Run(name, func(t *testing.T) {
			runContract(t, func() (*cuda.Device, error) {
				return cuda.OpenEmulated(cuda.Emulation{Virtual: virtual, MemoryBytes: 64 << 20, PinnedBytesMax: 16 << 20})
			})
		})
	}
}

func TestContractGPU(t *testing.T) {
	runContract(t, func() (*cuda.Device, error) { return cuda.Open(cuda.Config{PinnedBytesMax: 16 << 20}) })
}

// skipIfNotSupported skips the test only if there is no GPU, and never if a GPU is required.
func skipIfNotSupported(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, cuda.ErrNotSupported) {
		if os.Getenv("DOWNBEAT_REQUIRE_GPU") == "1" {
			t.Fatalf("DOWNBEAT_REQUIRE_GPU=1: %v", err)
		}
		t.Skip(err)
	}
}

func runContract(t *testing.T, open func() (*cuda.Device, error)) {
	for _, c := range contract {
		t.Run(c.name, func(t *testing.T) {
			d, err := open()
			skipIfNotSupported(t, err)
			must(t, err)
			c.run(t, d)
			if err := d.Close(); err != nil {
				t.Error(err) // I1
			}
			if l := d.Live(); l != (cuda.Live{}) {
				t.Errorf("live after close: %+v", l)
			}
			if err := d.Submit(oneFill(d)); !errors.Is(err, cuda.ErrClosed) {
				t.Errorf("submit after close: %v", err)
			}
		})
	}
}

func oneFill(*cuda.Device) *cuda.Submission { return new(cuda.Submission) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// finish waits for all commands on st.
func finish(t *testing.T, d *cuda.Device, s *cuda.Submission, st *cuda.Stream) {
	t.Helper()
	ev, err := d.NewEvent()
	must(t, err)
	defer ev.Free()
	s.Record(st, ev)
	must(t, d.Submit(s))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	must(t, d.Wait(ctx, ev))
}

// fixture has what most tests need: a stream, device memory and a host slab.
type fixture struct {
	st   *cuda.Stream
	mem  *cuda.Memory
	host *cuda.Slab
}

func fix(t *testing.T, d *cuda.Device, n int64) fixture {
	t.Helper()
	st, err := d.NewStream()
	must(t, err)
	mem, err := d.Alloc(n)
	must(t, err)
	host, err := d.AllocHost(n)
	must(t, err)
	return fixture{st, mem, host}
}

func (f fixture) free() {
	f.host.Free()
	f.mem.Free()
	f.st.Free()
}

func copiesRoundTrip(t *testing.T, d *cuda.Device) {
	const n = 1 << 20
	f := fix(t, d, n)
	defer f.free()
	second, err := d.Alloc(n)
	must(t, err)
	defer second.Free()
	want := make([]byte, n)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	copy(f.host.Bytes(), want)
	var s cuda.Submission
	s.CopyIn(f.st, f.mem.Address(), f.host.Bytes())
	s.Copy(f.st, second.Address(), f.mem.Address(), n)
	s.Fill(f.st, second.Address()+10, 0xab, 100)
	finish(t, d, &s, f.st)
	clear(f.host.Bytes()) // poison, so that stale bytes do not pass
	s.Reset()
	s.CopyOut(f.st, f.host.Bytes(), second.Address())
	finish(t, d, &s, f.st)
	for i := 10; i < 110; i++ {
		want[i] = 0xab
	}
	if !bytes.Equal(f.host.Bytes(), want) {
		t.Error("bytes differ after the round trip")
	}
}

func spareStreamWorks(t *testing.T, d *cuda.Device) {
	f := fix(t, d, 4096)
	defer f.free()
	spare, err := d.NewSpareStream()
	must(t, err)
	defer spare.Free()
	var s cuda.Submission
	for i := range 50 { // I3 holds on it, too
		s.Fill(spare, f.mem.Address(), byte(i), 4096)
	}
	s.CopyOut(spare, f.host.Bytes(), f.mem.Address())
	finish(t, d, &s, spare)
	if b := f.host.Bytes(); b[0] != 49 || b[4095] != 49 {
		t.Errorf("got %d and %d, want 49", b[0], b[4095])
	}
}

func streamKeepsOrder(t *testing.T, d *cuda.Device) {
	f := fix(t, d, 4096)
	defer f.free()
	var s cuda.Submission
	for i := range 50 { // I3: the last fill wins
		s.Fill(f.st, f.mem.Address(), byte(i), 4096)
	}
	s.CopyOut(f.st, f.host.Bytes(), f.mem.Address())
	finish(t, d, &s, f.st)
	if b := f.host.Bytes(); b[0] != 49 || b[4095] != 49 {
		t.Errorf("got %d and %d, want 49", b[0], b[4095])
	}
}

func waitOrdersStreams(t *testing.T, d *cuda.Device) {
	f := fix(t, d, 8<<20)
	defer f.free()
	second, err := d.NewStream()
	must(t, err)
	defer second.Free()
	ev, err := d.NewEvent()
	must(t, err)
	defer ev.Free()
	for round := range 5 {
		var s cuda.Submission
		copyAll := f.host.Bytes()
		for i := range copyAll {
			copyAll[i] = byte(round + 1)
		}
		s.CopyIn(f.st, f.mem.Address(), copyAll) // a long copy
		s.Record(f.st, ev)
		s.Wait(second, ev)
		s.Fill(second, f.mem.Address()+(8<<20)-1, 200, 1) // a short fill that must come later
		finish(t, d, &s, second)
		s.Reset()
		s.CopyOut(second, f.host.Bytes(), f.mem.Address())
		finish(t, d, &s, second)
		if b := f.host.Bytes(); b[0] != byte(round+1) || b[8<<20-1] != 200 {
			t.Fatalf("round %d: got %d and %d", round, b[0], b[8<<20-1])
		}
	}
}

func eventNeverRecorded(t *testing.T, d *cuda.Device) {
	ev, err := d.NewEvent()
	must(t, err)
	defer ev.Free()
	if done, err := d.Done(ev); !done || err != nil {
		t.Errorf("done %v, %v", done, err)
	}
}

func elapsedGrows(t *testing.T, d *cuda.Device) {
	f := fix(t, d, 8<<20)
	defer f.free()
	var evs [3]*cuda.Event
	var s cuda.Submission
	for i := range evs {
		ev, err := d.NewEvent()
		must(t, err)
		defer ev.Free()
		evs[i] = ev
	}
	s.Record(f.st, evs[0])
	s.CopyIn(f.st, f.mem.Address(), f.host.Bytes()[:4096])
	s.Record(f.st, evs[1])
	s.CopyIn(f.st, f.mem.Address(), f.host.Bytes())
	s.Record(f.st, evs[2])
	finish(t, d, &s, f.st)
	short, err := d.Elapsed(evs[0], evs[1])
	must(t, err)
	long, err := d.Elapsed(evs[1], evs[2])
	must(t, err)
	if short <= 0 || long <= short {
		t.Errorf("4 KiB took %v, 8 MiB %v", short, long)
	}
}

func graphReplays(t *testing.T, d *cuda.Device) {
	f := fix(t, d, 4096)
	defer f.free()
	side, err := d.NewStream()
	must(t, err)
	defer side.Free()
	var evs [2]*cuda.Event
	for i := range evs {
		evs[i], err = d.NewEvent()
		must(t, err)
		defer evs[i].Free()
	}
	var s cuda.Submission
	s.Fill(f.st, f.mem.Address(), 1, 4096)
	s.Record(f.st, evs[0]) // fork
	s.Wait(side, evs[0])
	s.Fill(side, f.mem.Address(), 2, 100)
	s.Record(side, evs[1]) // join
	s.Wait(f.st, evs[1])
	s.CopyOut(f.st, f.host.Bytes(), f.mem.Address())
	g, err := d.Capture(f.st, &s)
	must(t, err)
	defer g.Free()
	for range 3 {
		clear(f.host.Bytes())
		s.Reset()
		s.Graph(f.st, g)
		finish(t, d, &s, f.st)
		if b := f.host.Bytes(); b[0] != 2 || b[99] != 2 || b[100] != 1 || b[4095] != 1 {
			t.Fatalf("got %d %d %d %d", b[0], b[99], b[100], b[4095])
		}
	}
	if _, err := d.Capture(f.st, new(cuda.Submission)); err == nil || !strings.Contains(err.Error(), "empty submission") {
		t.Errorf("an empty submission was captured: %v", err)
	}
}

func waitEndsWithContext(t *testing.T, d *cuda.Device) {
	f := fix(t, d, 8<<20)
	defer f.free()
	ev, err := d.NewEvent()
	must(t, err)
	defer ev.Free()
	var s cuda.Submission
	for range 50 {
		s.CopyIn(f.st, f.mem.Address(), f.host.Bytes())
	}
	s.Record(f.st, ev)
	must(t, d.Submit(&s))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.Wait(ctx, ev); err != nil && (!errors.Is(err, cuda.ErrHung) || !errors.Is(err, context.Canceled)) {
		t.Errorf("wait: %v", err)
	}
	must(t, d.Wait(context.Background(), ev))
}

func slabsAreReused(t *testing.T, d *cuda.Device) {
	a, err := d.AllocHost(150 << 10)
	must(t, err)
	if !a.Pinned() || len(a.Bytes()) != 150<<10 {
		t.Errorf("pinned %v, %d bytes", a.Pinned(), len(a.Bytes()))
	}
	p := &a.Bytes()[0]
	a.Free()
	a.Free() // a second Free is ignored
	b, err := d.AllocHost(149 << 10)
	must(t, err)
	c, err := d.AllocHost(149 << 10)
	must(t, err)
	if &b.Bytes()[0] != p || &c.Bytes()[0] == p { // I4
		t.Error("the freed slab was not reused once")
	}
	if st := d.PinnedStats(); st.Reused != 1 || st.DriverAllocs != 2 || st.HighWater < 2*149<<10 {
		t.Errorf("stats %+v", st)
	}
	if n := testing.AllocsPerRun(100, func() {
		s, _ := d.AllocHost(4096)
		s.Free()
	}); n != 0 {
		t.Errorf("%v allocations for each slab", n)
	}
	b.Free()
	c.Free()
}

func badArguments(t *testing.T, d *cuda.Device) {
	for _, n := range []int64{0, -1} {
		if _, err := d.Alloc(n); err == nil || !strings.Contains(err.Error(), "alloc of") {
			t.Errorf("Alloc(%d) succeeded: %v", n, err)
		}
		if _, err := d.AllocHost(n); err == nil || !strings.Contains(err.Error(), "alloc of") {
			t.Errorf("AllocHost(%d) succeeded: %v", n, err)
		}
	}
	if _, err := d.Register(nil); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("Register(nil) succeeded: %v", err)
	}
	if _, err := d.LoadModule(nil); err == nil || !strings.Contains(err.Error(), "empty image") {
		t.Errorf("LoadModule(nil) succeeded: %v", err)
	}
	if d.Err() != nil {
		t.Errorf("bad arguments made the device unusable: %v", d.Err())
	}
}

func outOfMemory(t *testing.T, d *cuda.Device) {
	_, total, err := d.MemoryInfo()
	must(t, err)
	before := d.Live()
	_, err = d.Alloc(total + 1)
	var e *cuda.Error
	if !errors.Is(err, cuda.ErrOutOfMemory) || !errors.As(err, &e) || e.Op == "" {
		t.Errorf("alloc of everything and one: %v", err)
	}
	if d.Live() != before {
		t.Errorf("live %+v, was %+v", d.Live(), before)
	}
	m, err := d.Alloc(4096)
	must(t, err)
	m.Free()
	m.Free()
}

func submitAllocatesNothing(t *testing.T, d *cuda.Device) {
	f := fix(t, d, 4096)
	defer f.free()
	ev, err := d.NewEvent()
	must(t, err)
	defer ev.Free()
	var s cuda.Submission
	batch := func() {
		s.Reset()
		s.CopyIn(f.st, f.mem.Address(), f.host.Bytes())
		s.Fill(f.st, f.mem.Address(), 1, 4096)
		s.Record(f.st, ev)
		_ = d.Submit(&s)
		must(t, d.WaitFor(10*time.Second, ev))
	}
	batch()
	if n := testing.AllocsPerRun(100, batch); n != 0 { // I6
		t.Errorf("%v allocations for each submission", n)
	}
}

// BenchmarkSubmit is what a crossing costs, and what a command costs within one: it decides how submissions
// are cut (docs/decisions/0061).
func BenchmarkSubmit(b *testing.B) {
	d, err := cuda.Open(cuda.Config{PinnedBytesMax: 1 << 20})
	if err != nil {
		b.Skip(err)
	}
	defer d.Close()
	ev, err := d.NewEvent()
	if err != nil {
		b.Fatal(err)
	}
	defer ev.Free()
	st, err := d.NewStream()
	if err != nil {
		b.Fatal(err)
	}
	defer st.Free()
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n, " waits"), func(b *testing.B) {
			var s cuda.Submission
			for range n {
				s.Wait(st, ev)
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := d.Submit(&s); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
