package pipeline_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/pipeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A device on which one request's copy in takes 1 ms, compute 2 ms a batch, and copy out 0.5 ms a request.
const (
	inBytes  = 100_000
	outBytes = 50_000
)

func device(t *testing.T, fault func(cuda.Site) cuda.Fault) *cuda.Device {
	d, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, CopyInBandwidth: 1e8, CopyOutBandwidth: 1e8,
		CommandTime: 1, Fault: fault, KernelTime: func(cuda.Launch) time.Duration { return 2 * time.Millisecond },
		Kernels: map[string]cuda.KernelFunc{"first bytes": firstBytes}})
	must(t, err)
	return d
}

// firstBytes writes each request's first input byte plus one over its whole output. Params: n, then the
// addresses' offsets from 1<<40 in units of 1<<16 would not fit a byte, so they travel as eight bytes each.
func firstBytes(m *cuda.DeviceMemory, l cuda.Launch) {
	n := int(l.Params[0])
	in, out := cuda.Address(le(l.Params[8:])), cuda.Address(le(l.Params[16:]))
	for i := range n {
		v := m.Bytes(in+cuda.Address(i*inBytes), inBytes)[inBytes-1] + 1
		o := m.Bytes(out+cuda.Address(i*outBytes), outBytes)
		for j := range o {
			o[j] = v
		}
	}
}

func le(b []byte) (v uint64) {
	for i := 7; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v
}

func put(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}

type rig struct {
	t   *testing.T
	d   *cuda.Device
	m   *cuda.Module
	p   *pipeline.Pipeline
	run pipeline.Compute
}

func open(t *testing.T, d *cuda.Device, slots int) *rig {
	m, err := d.LoadModule([]byte("x"))
	must(t, err)
	k, err := m.Kernel("first bytes")
	must(t, err)
	p, err := pipeline.Open(d, pipeline.Config{Slots: slots, BatchMax: 4, Inputs: []int64{inBytes}, Outputs: []int64{outBytes}})
	must(t, err)
	params := make([]byte, 24)
	return &rig{t: t, d: d, m: m, p: p, run: func(s *cuda.Submission, st *cuda.Stream, n int, in, out []cuda.Address) error {
		params[0] = byte(n)
		put(params[8:], uint64(in[0]))
		put(params[16:], uint64(out[0]))
		s.Launch(st, k, cuda.Dim{X: 1, Y: 1, Z: 1}, cuda.Dim{X: 1, Y: 1, Z: 1}, 0, params)
		return nil
	}}
}

func (r *rig) close() {
	r.p.Close()
	r.m.Free()
	if err := r.d.Close(); err != nil {
		r.t.Error(err)
	}
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func (r *rig) submit(n int, v byte) *pipeline.Batch {
	r.t.Helper()
	b, err := r.p.Begin(context.Background())
	must(r.t, err)
	for i := range n {
		fill(b.Input(i), v+byte(i))
	}
	must(r.t, b.Arrived(0, n))
	must(r.t, b.Submit(n, r.run))
	return b
}

func (r *rig) collect(b *pipeline.Batch, n int, v byte) {
	r.t.Helper()
	must(r.t, b.Wait(context.Background()))
	for i := range n {
		o := b.Output(0, i)
		if len(o) != outBytes || o[0] != v+byte(i)+1 || o[outBytes-1] != v+byte(i)+1 {
			r.t.Fatalf("request %d of batch %d: got %d", i, v, o[0])
		}
	}
	must(r.t, b.Free(context.Background()))
}

func TestStagesOfConsecutiveBatchesOverlap(t *testing.T) {
	for slots, want := range map[int]time.Duration{1: 10 * 5 * time.Millisecond, 3: 2*time.Millisecond + 10*2*time.Millisecond + time.Millisecond} {
		r := open(t, device(t, nil), slots)
		var under []*pipeline.Batch
		begin := r.d.Now()
		for i := range 10 { // batches of two: in 2 ms, compute 2 ms, out 1 ms
			if len(under) == slots {
				r.collect(under[0], 2, byte(i-slots))
				under = under[1:]
			}
			under = append(under, r.submit(2, byte(i)))
		}
		for i, b := range under {
			r.collect(b, 2, byte(10-len(under)+i))
		}
		if got := (r.d.Now() - begin).Round(time.Millisecond); got != want {
			t.Errorf("%d slots: ten batches took %v, want %v", slots, got, want)
		}
		r.close()
	}
}

func TestEachCopyStartsWhenItsBytesArrive(t *testing.T) {
	r := open(t, device(t, nil), 1)
	defer r.close()
	b, err := r.p.Begin(context.Background())
	must(t, err)
	for i := range 3 { // one arrives each millisecond, which is as long as its copy takes
		fill(b.Input(i), byte(10+i))
		must(t, b.Arrived(i, 1))
		r.d.Advance(time.Millisecond)
	}
	must(t, b.Submit(3, r.run))
	must(t, b.Wait(context.Background()))
	// 3 ms of arrivals hide the copies; then compute 2 ms and copies out 1.5 ms.
	if got := r.d.Now().Round(100 * time.Microsecond); got != 6500*time.Microsecond {
		t.Errorf("took %v, want 6.5 ms", got)
	}
	times, err := b.StageTimes()
	must(t, err)
	if in := times[pipeline.StageIn].Round(time.Millisecond); in != 3*time.Millisecond {
		t.Errorf("stages took %v", times)
	}
	r.collect(b, 3, 10)
}

func TestRefusals(t *testing.T) {
	r := open(t, device(t, nil), 1)
	defer r.close()
	b, err := r.p.Begin(context.Background())
	must(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := r.p.Begin(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second batch in one slot: %v", err)
	}
	for _, a := range [][2]int{{-1, 1}, {0, 0}, {0, 5}, {4, 1}} {
		if b.Arrived(a[0], a[1]) == nil {
			t.Errorf("Arrived(%d, %d) passed", a[0], a[1])
		}
	}
	must(t, b.Arrived(0, 1))
	if b.Arrived(0, 1) == nil {
		t.Error("a request arrived twice")
	}
	if b.Submit(2, r.run) == nil || b.Submit(0, r.run) == nil || b.Submit(5, r.run) == nil {
		t.Error("a batch that is incomplete, empty or too large was submitted")
	}
	if b.Wait(context.Background()) == nil {
		t.Error("waited for a batch that was not submitted")
	}
	must(t, b.Free(context.Background())) // given up with a copy under way
	b = r.submit(1, 5)
	if b.Arrived(1, 1) == nil || b.Submit(1, r.run) == nil {
		t.Error("a submitted batch was changed")
	}
	r.collect(b, 1, 5)
	for _, c := range []pipeline.Config{{}, {Slots: 1, BatchMax: 1}, {Slots: 1, BatchMax: 1, Inputs: []int64{0}, Outputs: []int64{1}}} {
		if _, err := pipeline.Open(r.d, c); err == nil {
			t.Errorf("config %+v was taken", c)
		}
	}
}

func TestOpenFailsCleanlyAtEverySite(t *testing.T) {
	for n := 0; ; n++ {
		calls := 0
		d := device(t, func(cuda.Site) cuda.Fault {
			if calls++; calls == n+1 {
				return cuda.Fault{Code: cuda.CodeOutOfMemory}
			}
			return cuda.Fault{}
		})
		p, err := pipeline.Open(d, pipeline.Config{Slots: 2, BatchMax: 4, Inputs: []int64{10, 20}, Outputs: []int64{5}})
		if err == nil {
			p.Close()
		}
		if err := d.Close(); err != nil {
			t.Errorf("site %d: %v", n, err)
		}
		if calls <= n {
			break
		}
	}
}

func TestSlowCopyHangAndLoss(t *testing.T) {
	for name, f := range map[string]cuda.Fault{"hang": {Hang: true}, "lost": {Code: cuda.CodeDeviceUnavailable}, "slow": {Slow: time.Second}} {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		r := open(t, device(t, func(s cuda.Site) cuda.Fault {
			if s.Op == "copy in" {
				return f
			}
			return cuda.Fault{}
		}), 1)
		b, err := r.p.Begin(ctx)
		must(t, err)
		fill(b.Input(0), 1)
		err = errors.Join(b.Arrived(0, 1), b.Submit(1, r.run))
		if err == nil {
			err = b.Wait(ctx)
		}
		want := map[string]error{"hang": cuda.ErrHung, "lost": cuda.ErrDeviceLost}[name]
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := b.Free(ctx); (err == nil) != (name == "slow") {
			t.Errorf("%s: free: %v", name, err)
		}
		cancel()
		r.p.Close()
		r.m.Free()
		if err := r.d.Close(); (err != nil) != (name == "hang") || name == "hang" && !errors.Is(err, cuda.ErrHung) {
			t.Errorf("%s: close: %v", name, err)
		}
	}
}

func TestWarmPathAllocatesLittle(t *testing.T) {
	r := open(t, device(t, nil), 1)
	defer r.close()
	b, err := r.p.Begin(context.Background())
	must(t, err)
	ctx := context.Background()
	must(t, b.Free(ctx))
	if n := testing.AllocsPerRun(100, func() { // P3: the slot itself; the emulation's queues are its own
		b, _ := r.p.Begin(ctx)
		_ = b.Input(0)
		_ = b.Free(ctx)
	}); n != 0 {
		t.Errorf("%v allocations for a slot", n)
	}
}
