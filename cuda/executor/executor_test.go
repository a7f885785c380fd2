package executor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/layers"
	"downbeat.dev/cuda/residency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func bytesOf(v []float32) (b []byte) {
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

const width = 32

// adder returns a graph of depth layers of x·I·1 + c, with an early output "early" after the second layer. Every
// layer has its own matrix and bias, so that loading the wrong parameters shows.
func adder(name string, depth int, c float32) *layers.Graph {
	g := &layers.Graph{Name: name, Opset: 13, Inputs: []layers.Value{{Name: "x", Type: layers.Float32, Dims: []int{-1, width}}}, Outputs: []string{"early", "y"}}
	at := "x"
	for i := range depth {
		w, b := make([]float32, width*width), make([]float32, width)
		for j := range width {
			w[j*width+j], b[j] = 1, c+float32(i)
		}
		wn, bn, out := fmt.Sprintf("w%d", i), fmt.Sprintf("b%d", i), fmt.Sprintf("v%d", i)
		if i == 1 {
			out = "early"
		}
		if i == depth-1 {
			out = "y"
		}
		g.Constants = append(g.Constants,
			layers.Constant{Value: layers.Value{Name: wn, Type: layers.Float32, Dims: []int{width, width}}, Data: bytesOf(w)},
			layers.Constant{Value: layers.Value{Name: bn, Type: layers.Float32, Dims: []int{width}}, Data: bytesOf(b)})
		g.Nodes = append(g.Nodes, layers.Node{Name: out, Op: "Gemm", Inputs: []string{at, wn, bn}, Outputs: []string{out}})
		at = out
	}
	return g
}

func sum(depth int, c float32) (s float32) {
	for i := range depth {
		s += c + float32(i)
	}
	return s
}

type rig struct {
	t       *testing.T
	d       *cuda.Device
	r       *executor.Runtime
	st      *cuda.Stream
	mem     *cuda.Memory
	host    *cuda.Slab
	in, out []cuda.Address
}

func open(t *testing.T, deviceBytes int64, capture bool) *rig {
	d, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, Kernels: kernels.Reference()})
	must(t, err)
	return openOn(t, d, deviceBytes, capture)
}

func openOn(t *testing.T, d *cuda.Device, deviceBytes int64, capture bool) *rig {
	r, err := executor.Open(d, executor.Config{DeviceBytes: deviceBytes, PinnedBytes: 8 << 10, Capture: capture})
	must(t, err)
	st, err := d.NewStream()
	must(t, err)
	mem, err := d.Alloc(3 * 4096)
	must(t, err)
	host, err := d.AllocHost(3 * 4096)
	must(t, err)
	a := mem.Address()
	return &rig{t, d, r, st, mem, host, []cuda.Address{a}, []cuda.Address{a + 4096, a + 8192}}
}

func (r *rig) close() {
	r.r.Close()
	r.host.Free()
	r.mem.Free()
	r.st.Free()
	if err := r.d.Close(); err != nil {
		r.t.Error(err)
	}
}

// feed fills the inputs with x and poisons the outputs.
func (r *rig) feed(s *cuda.Submission, x float32) {
	v := make([]float32, 1024)
	for i := range v {
		v[i] = x
	}
	copy(r.host.Bytes(), bytesOf(v))
	s.CopyIn(r.st, r.in[0], r.host.Bytes()[:4096])
	s.Fill(r.st, r.out[0], 0xff, 8192)
}

func (r *rig) wait(s *cuda.Submission) {
	r.t.Helper()
	ev, err := r.d.NewEvent()
	must(r.t, err)
	defer ev.Free()
	s.Record(r.st, ev)
	must(r.t, r.d.Submit(s))
	must(r.t, r.d.Wait(context.Background(), ev))
}

// got returns element i of output k.
func (r *rig) got(k, i int) float32 {
	r.t.Helper()
	var s cuda.Submission
	s.CopyOut(r.st, r.host.Bytes(), r.mem.Address())
	r.wait(&s)
	return math.Float32frombits(binary.LittleEndian.Uint32(r.host.Bytes()[4096*(k+1)+4*i:]))
}

// enqueue runs a batch in one submission and checks both outputs' last element.
func (r *rig) enqueue(m *executor.Model, n, depth int, c, x float32) {
	r.t.Helper()
	var s cuda.Submission
	r.feed(&s, x)
	must(r.t, m.Enqueue(&s, r.st, n, r.in, r.out))
	r.wait(&s)
	must(r.t, m.Release(n, nil))
	r.compare(n, depth, c, x)
}

func (r *rig) compare(n, depth int, c, x float32) {
	r.t.Helper()
	if e, y := r.got(0, n*width-1), r.got(1, n*width-1); e != x+sum(2, c) || y != x+sum(depth, c) {
		r.t.Fatalf("batch %d: got %v and %v, want %v and %v", n, e, y, x+sum(2, c), x+sum(depth, c))
	}
	if after := r.got(1, n*width); !math.IsNaN(float64(after)) {
		r.t.Fatalf("batch %d wrote past its end", n)
	}
}

func TestEveryBatchSizeWithAndWithoutGraphs(t *testing.T) {
	for _, capture := range []bool{false, true} {
		r := open(t, 1<<20, capture)
		m, err := r.r.Load(adder("a", 5, 1), executor.Options{BatchMax: 4})
		must(t, err)
		for round := range 3 {
			for n := 1; n <= 4; n++ {
				r.enqueue(m, n, 5, 1, float32(10*n+round))
			}
		}
		if got := r.d.Live().Graphs; (got == 4) != capture {
			t.Errorf("capture %v: %d graphs", capture, got)
		}
		must(t, m.Close())
		r.close()
	}
}

func TestHooksSeeLayersAndStopEarly(t *testing.T) {
	r := open(t, 1<<20, false)
	defer r.close()
	m, err := r.r.Load(adder("a", 6, 1), executor.Options{BatchMax: 2})
	must(t, err)
	defer m.Close()
	var s cuda.Submission
	r.feed(&s, 5)
	r.wait(&s)
	var seen []int
	ran, err := m.Run(context.Background(), r.st, 2, r.in, r.out, func(i int, l *layers.Layer, took time.Duration) executor.Action {
		if took <= 0 || l.Op != "Gemm" {
			t.Errorf("layer %d %s took %v", i, l.Op, took)
		}
		seen = append(seen, i)
		if i == 1 {
			return executor.Stop
		}
		return executor.Continue
	})
	must(t, err)
	p, err := m.Plan(2)
	must(t, err)
	if ran != 2 || len(seen) != 2 || p.Outputs[0].Layer != 1 || p.Outputs[1].Layer != 5 {
		t.Errorf("ran %d, saw %v, outputs %+v", ran, seen, p.Outputs)
	}
	if e, y := r.got(0, 63), r.got(1, 63); e != 5+sum(2, 1) || !math.IsNaN(float64(y)) {
		t.Errorf("early %v, last %v", e, y)
	}
}

// TestPreemptionAtALayerBoundary: a hook runs another model at a layer boundary, and both results are right.
func TestPreemptionAtALayerBoundary(t *testing.T) {
	r := open(t, 1<<20, false)
	defer r.close()
	a, err := r.r.Load(adder("a", 4, 1), executor.Options{BatchMax: 2})
	must(t, err)
	defer a.Close()
	b, err := r.r.Load(adder("b", 3, 100), executor.Options{BatchMax: 2})
	must(t, err)
	defer b.Close()
	urgent, err := r.d.Alloc(3 * 4096)
	must(t, err)
	defer urgent.Free()
	in, out := []cuda.Address{urgent.Address()}, []cuda.Address{urgent.Address() + 4096, urgent.Address() + 8192}
	var s cuda.Submission
	r.feed(&s, 7)
	s.Fill(r.st, urgent.Address(), 0xff, urgent.Bytes())
	s.Copy(r.st, in[0], r.in[0], 4096)
	s.Fill(r.st, out[0], 0xff, 8192) // as feed does
	r.wait(&s)
	_, err = a.Run(context.Background(), r.st, 1, r.in, r.out, func(i int, _ *layers.Layer, _ time.Duration) executor.Action {
		if i == 1 {
			if _, err := b.Run(context.Background(), r.st, 1, in, out, nil); err != nil {
				t.Error(err)
			}
		}
		return executor.Continue
	})
	must(t, err)
	r.compare(1, 4, 1, 7)
	s.Reset()
	s.Copy(r.st, r.out[0], out[0], 8192)
	r.wait(&s)
	r.compare(1, 3, 100, 7)
}

// TestMoreModelsThanFit: ten models of which two fit continue to answer, with evictions and loads counted. Graphs
// follow addresses that move (E2).
func TestMoreModelsThanFit(t *testing.T) {
	r := open(t, 40<<10, true)
	defer r.close()
	var all []*executor.Model
	for i := range 10 {
		m, err := r.r.Load(adder(fmt.Sprint(i), 4, float32(i)), executor.Options{BatchMax: 2, SLO: time.Duration(10*i) * time.Millisecond})
		must(t, err)
		all = append(all, m)
	}
	for i := range 60 {
		k := (i * 7) % 10
		r.enqueue(all[k], 1+i%2, 4, float32(k), 3)
	}
	st := r.r.Stats()
	if st.Evictions[residency.Parameters] == 0 || st.LoadsPinned == 0 || st.LoadsPageable == 0 || st.LoadTime == 0 || st.Freed == 0 {
		t.Errorf("stats %+v", st)
	}
	for _, m := range all {
		must(t, m.Close())
	}
}

// TestAModelLargerThanTheDeviceRunsLayerByLayer: a model larger than the device memory cannot be enqueued at once,
// and the error says so. Run loads it layer by layer.
func TestAModelLargerThanTheDeviceRunsLayerByLayer(t *testing.T) {
	r := open(t, 16<<10, false)
	defer r.close()
	m, err := r.r.Load(adder("large", 8, 2), executor.Options{BatchMax: 1}) // 8 layers of 4.25 KiB
	must(t, err)
	defer m.Close()
	var s cuda.Submission
	r.feed(&s, 1)
	if err := m.Enqueue(&s, r.st, 1, r.in, r.out); !errors.Is(err, residency.ErrDoesNotFit) {
		t.Errorf("enqueue: %v", err)
	}
	r.wait(&s)
	for range 2 {
		ran, err := m.Run(context.Background(), r.st, 1, r.in, r.out, nil)
		must(t, err)
		if ran != 8 {
			t.Errorf("ran %d layers", ran)
		}
		r.compare(1, 8, 2, 1)
	}
	if st := r.r.Stats(); st.Loads < 16 {
		t.Errorf("%d loads", st.Loads)
	}
}

// TestAPassRunsSomeLayersAtATime: between two parts of a batch another model's batch runs on the same device and takes
// none of its memory; a batch that is given up holds nothing.
func TestAPassRunsSomeLayersAtATime(t *testing.T) {
	r := open(t, 64<<10, true) // room for one model and its parameters, and a part of the other's
	defer r.close()
	spare, err := r.d.NewSpareStream()
	must(t, err)
	defer spare.Free()
	slow, err := r.r.Load(adder("slow", 6, 1), executor.Options{BatchMax: 1})
	must(t, err)
	defer slow.Close()
	served, err := r.r.Load(adder("served", 6, 2), executor.Options{BatchMax: 1})
	must(t, err)
	defer served.Close()

	// The pass has its own tensors.
	mem, err := r.d.Alloc(3 * 4096)
	must(t, err)
	defer mem.Free()
	in, out := []cuda.Address{mem.Address()}, []cuda.Address{mem.Address() + 4096, mem.Address() + 8192}
	var s cuda.Submission
	r.feed(&s, 5)
	s.Copy(r.st, in[0], r.in[0], 4096)
	s.Fill(r.st, out[0], 0xff, 8192) // as feed does
	r.wait(&s)

	for _, parts := range [][]int{{2, 1, 3}, {1, 1, 1, 1, 1, 1}, {9}, {4}} {
		p, err := slow.Begin(spare, 1, in, out)
		must(t, err)
		want := 0
		for _, n := range parts {
			must(t, p.Advance(n, time.Second))
			want = min(want+n, 6)
			if all, ran := p.Layers(); all != 6 || ran != want {
				t.Errorf("%v: %d of %d layers ran, want %d of 6", parts, ran, all, want)
			}
			r.enqueue(served, 1, 6, 2, 1)
		}
		must(t, p.End())
		if want < 6 {
			continue
		}
		s.Reset()
		s.Copy(r.st, r.out[0], out[0], 8192)
		r.wait(&s)
		r.compare(1, 6, 1, 5)
	}
	if _, err := slow.Begin(spare, 1, in, nil); err == nil || !strings.Contains(err.Error(), "the model has 1 and 2") {
		t.Errorf("no outputs were taken: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	r := open(t, 2<<10, false)
	defer r.close()
	if _, err := r.r.Load(adder("a", 3, 1), executor.Options{BatchMax: 1}); err == nil || !strings.Contains(err.Error(), "device memory") {
		t.Errorf("a layer of 4 KiB in 2 KiB: %v", err)
	}
	if _, err := r.r.Load(adder("a", 3, 1), executor.Options{}); err == nil || !strings.Contains(err.Error(), "must be 1 to 4096") {
		t.Errorf("batch max 0 was taken: %v", err)
	}
	big := open(t, 1<<20, false)
	defer big.close()
	m, err := big.r.Load(adder("a", 3, 1), executor.Options{BatchMax: 2})
	must(t, err)
	defer m.Close()
	var s cuda.Submission
	for _, n := range []int{0, 3} {
		if err := m.Enqueue(&s, big.st, n, big.in, big.out); err == nil || !strings.Contains(err.Error(), "must be 1 to 2") {
			t.Errorf("batch of %d was taken: %v", n, err)
		}
	}
	if err := m.Enqueue(&s, big.st, 1, nil, big.out); err == nil || !strings.Contains(err.Error(), "the model has 1 and 2") {
		t.Errorf("no inputs were taken: %v", err)
	}
}

// TestEarlyExitInHalfPrecision: in half precision an early output is complete, as float32, when its layer is, because
// the cast belongs to the layer.
func TestEarlyExitInHalfPrecision(t *testing.T) {
	for _, precision := range []layers.Precision{layers.FP16, layers.BF16} {
		r := open(t, 1<<20, false)
		m, err := r.r.Load(adder("a", 6, 1), executor.Options{BatchMax: 2, Precision: precision})
		must(t, err)
		var s cuda.Submission
		r.feed(&s, 5)
		r.wait(&s)
		p, err := m.Plan(2)
		must(t, err)
		last := p.Outputs[0].Layer
		ran, err := m.Run(context.Background(), r.st, 2, r.in, r.out, func(i int, _ *layers.Layer, _ time.Duration) executor.Action {
			if i == last {
				return executor.Stop
			}
			return executor.Continue
		})
		must(t, err)
		if ran != last+1 || ran >= len(p.Layers) {
			t.Errorf("%v: ran %d layers of %d, the early output needs %d", precision, ran, len(p.Layers), last+1)
		}
		if e, y := r.got(0, 63), r.got(1, 63); e != 5+sum(2, 1) || !math.IsNaN(float64(y)) {
			t.Errorf("%v: early %v, last %v", precision, e, y)
		}
		choices, err := m.Choices(2)
		must(t, err)
		if len(choices) < len(p.Layers) || choices[0].Kernel != "cast" {
			t.Errorf("%v: choices %+v", precision, choices)
		}
		must(t, m.Close())
		r.close()
	}
	r := open(t, 1<<20, false)
	defer r.close()
	if _, err := r.r.Load(adder("a", 3, 1), executor.Options{BatchMax: 1, Precision: 9}); err == nil || !strings.Contains(err.Error(), "precision 9") {
		t.Errorf("precision 9: %v", err)
	}
}

// TestASuccessorIsReady gives a model whose batches are captured a successor with other weights: while batches of both
// are run, the results are each one's own; the successor's first batches capture nothing and copy nothing in, and neither
// needs the other to close.
func TestASuccessorIsReady(t *testing.T) {
	captures := 0
	d, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, Kernels: kernels.Reference(), Fault: func(s cuda.Site) cuda.Fault {
		if s.Op == "capture" {
			captures++
		}
		return cuda.Fault{}
	}})
	must(t, err)
	r := openOn(t, d, 1<<20, true)
	defer r.close()
	m, err := r.r.Load(adder("a", 5, 1), executor.Options{BatchMax: 3})
	must(t, err)
	for n := 1; n <= 3; n++ {
		r.enqueue(m, n, 5, 1, 7)
	}
	if captures != 3 {
		t.Fatalf("%d captures for three batch sizes", captures)
	}

	w, err := m.Weights(adder("b", 5, 40), m.Planned())
	must(t, err)
	next, err := m.Succeed(w, new(sync.Mutex))
	must(t, err)
	ready, loads := captures, r.r.Stats().Loads
	for n := 1; n <= 3; n++ {
		r.enqueue(next, n, 5, 40, 9)
		r.enqueue(m, n, 5, 1, 7)
	}
	if captures != ready || r.r.Stats().Loads != loads+6 { // activations alone, once a batch
		t.Errorf("%d graphs were captured and %d contents brought in by batches", captures-ready, r.r.Stats().Loads-loads)
	}
	if _, err := m.Weights(adder("deeper", 6, 1), m.Planned()); !errors.Is(err, executor.ErrShape) {
		t.Errorf("a graph of another depth: %v, want %v", err, executor.ErrShape)
	}

	must(t, m.Close())
	r.enqueue(next, 2, 5, 40, 9)
	must(t, next.Close())
	if s := r.r.Stats(); s.DeviceBytes != 0 {
		t.Errorf("%d bytes held without a model", s.DeviceBytes)
	}
}

// TestASuccessorWithoutRoomComesWithItsFirstBatch: where the device does not hold both models, the old one keeps its place
// until the other's first batch.
func TestASuccessorWithoutRoomComesWithItsFirstBatch(t *testing.T) {
	d, err := cuda.OpenEmulated(cuda.Emulation{Virtual: true, Kernels: kernels.Reference()})
	must(t, err)
	r := openOn(t, d, 36<<10, true)
	defer r.close()
	m, err := r.r.Load(adder("a", 5, 1), executor.Options{BatchMax: 1})
	must(t, err)
	r.enqueue(m, 1, 5, 1, 7)
	w, err := m.Weights(adder("b", 5, 40), m.Planned())
	must(t, err)
	next, err := m.Succeed(w, new(sync.Mutex))
	must(t, err)

	evictions := func() int64 { return r.r.Stats().ToPinned + r.r.Stats().ToPageable }
	if n := evictions(); n != 0 {
		t.Errorf("%d contents were evicted for a model that no batch asks for", n)
	}
	r.enqueue(m, 1, 5, 1, 7)
	r.enqueue(next, 1, 5, 40, 9)
	if evictions() == 0 {
		t.Error("the device holds both models, so this shows nothing")
	}
	must(t, next.Close())
	must(t, m.Close())
}

// TestLayersThatWereTheSame: two layers of a sharing model with the same bytes have one content, which weights that differ
// between them do not fit.
func TestLayersThatWereTheSame(t *testing.T) {
	r := open(t, 1<<20, true)
	defer r.close()
	twice := adder("a", 3, 1)
	twice.Constants[3].Data = twice.Constants[1].Data
	m, err := r.r.Load(twice, executor.Options{BatchMax: 1, Share: true})
	must(t, err)
	before := r.r.Stats()
	w, err := m.Weights(adder("b", 3, 40), m.Planned())
	must(t, err)
	if _, err := m.Succeed(w, new(sync.Mutex)); !errors.Is(err, executor.ErrShape) {
		t.Errorf("layers that differ now: %v, want %v", err, executor.ErrShape)
	}
	if after := r.r.Stats(); after.DeviceBytes != before.DeviceBytes {
		t.Errorf("%d bytes on the device before, %d after", before.DeviceBytes, after.DeviceBytes)
	}
	must(t, m.Close())
}
