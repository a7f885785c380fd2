package backend_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/backend"
	"downbeat.dev/backend/device"
	"downbeat.dev/backend/layered"
	"downbeat.dev/backend/measure"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/frontend"
	"downbeat.dev/internal/sicklink"
	"downbeat.dev/rdma"
)

// metric sums the samples of a name with a label value; "" for any.
func metric(t *testing.T, c prometheus.Collector, name, value string) (sum float64) {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			match := value == ""
			for _, l := range m.GetLabel() {
				match = match || l.GetValue() == value
			}
			if f.GetName() == name && match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// TestRequestsMoveFromAGPUThatFails serves from two backends of one emulated GPU each while the device of one fails.
// Every request ends with its own output or with a named outcome. Requests of a device that is lost or hangs end with
// an output, because the other device has time.
func TestRequestsMoveFromAGPUThatFails(t *testing.T) {
	for kind, want := range map[string]struct{ all, up bool }{
		"lost": {true, false}, "sticky": {true, false}, "hang": {true, false}, "slow": {true, true}, "fail": {false, true},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // they mostly wait
			dir := writeRepository(t)
			s := startScheduler(t, "127.0.0.1:0")
			defer s.stop(t)
			sick := startBackend(t, backend.Options{Name: "sick", Scheduler: s.addr, Models: dir, Emulate: 1, Faults: "0:" + kind + "@5"})
			well := startBackend(t, backend.Options{Name: "well", Scheduler: s.addr, Models: dir, Emulate: 1})
			c := dial(t, s.addr, "emulated")
			m := emulatedModel(t, dir)
			var wait sync.WaitGroup
			var outputs, outcomes atomic.Int64
			for caller := range 8 {
				wait.Add(1)
				go func() {
					defer wait.Done()
					for i := range 25 {
						err := askFor(c, m, caller*100+i, 8*time.Second)
						var outcome *frontend.OutcomeError
						switch {
						case err == nil:
							outputs.Add(1)
						case errors.As(err, &outcome):
							outcomes.Add(1)
						default:
							t.Errorf("request %d.%d: %v", caller, i, err)
						}
					}
				}()
			}
			wait.Wait()
			if n := outputs.Load() + outcomes.Load(); n != 200 || outputs.Load() == 0 || want.all && outputs.Load() != n {
				t.Errorf("%d outputs and %d outcomes of 200 requests", outputs.Load(), outcomes.Load())
			}
			if up := metric(t, sick, "downbeat_gpu_up", "") == 1; up != want.up && kind != "fail" { // by the number of batches that failed in a row
				t.Errorf("the GPU is up: %v, stats %+v", up, sick.Stats())
			}
			if kind == "fail" && outcomes.Load() > 32 || metric(t, sick, "downbeat_gpu_batches_total", "") < 5 || metric(t, well, "downbeat_gpu_rows_total", "") == 0 {
				t.Errorf("%d outcomes; sick %+v, well %+v", outcomes.Load(), sick.Stats(), well.Stats())
			}
			c.Close()
			stopBackend(t, well)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := sick.Stop(ctx); err != nil && kind != "hang" {
				t.Errorf("stop: %v", err)
			}
		})
	}
}

// TestAFrontendThatNoBackendReachesIsToldWhy: a frontend advertises a data address where nobody answers. Its requests
// end with the true reason, which the scheduler tells, because the data plane cannot.
func TestAFrontendThatNoBackendReachesIsToldWhy(t *testing.T) {
	dir := writeRepository(t)
	s := startScheduler(t, "127.0.0.1:0")
	defer s.stop(t)
	b := startBackend(t, backend.Options{Name: "far", Scheduler: s.addr, Models: dir, Emulate: 1})
	defer stopBackend(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := frontend.Dial(ctx, frontend.Options{Scheduler: s.addr, Token: token, Data: frontend.DataPlane{Advertise: sicklink.FreeAddr(t), Providers: []string{"tcp"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for c.Model("emulated", "") == nil {
		time.Sleep(time.Millisecond)
	}

	err = askFor(c, emulatedModel(t, dir), 1, 20*time.Second)
	var outcome *frontend.OutcomeError
	if !errors.As(err, &outcome) || outcome.Reason != model.InputUnavailable || outcome.Local {
		t.Errorf("got %v, want %v, told by the scheduler", err, model.InputUnavailable)
	}
}

// askFor sends one request to the emulated model and checks that the output is its own.
func askFor(c *frontend.Client, m *device.Model, seed int, budget time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), budget)
	defer cancel()
	in := pattern(m, seed)
	r, err := c.InferCopy(ctx, "emulated", in)
	if err != nil {
		return err
	}
	defer r.Release()
	return checkPattern(m, in, r.Data)
}

const scaleConfig = `
platform: "onnxruntime_onnx"
max_batch_size: 2
input [ { name: "x" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 64 ] } ]
parameters { key: "slo_ms" value { string_value: "%d" } }
`

// writeScales writes n models y = x·(k+1) with 16 KiB of weights each and SLOs from 4 to 8 s.
func writeScales(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	for k := range n {
		w := make([]float32, 64*64)
		for i := range 64 {
			w[i*65] = float32(k + 1)
		}
		g := onnx.NewBuilder("scale")
		x := g.Input("x", onnx.Float, onnx.Batched(64))
		g.Output("y", g.Node("MatMul", []string{x, g.Const(onnx.FloatTensor("w", w, 64, 64))}), onnx.Float, onnx.Batched(64))
		m, err := g.Model(13)
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, fmt.Sprintf("scale%02d", k))
		if err := errors.Join(os.MkdirAll(filepath.Join(at, "1"), 0o755), os.WriteFile(filepath.Join(at, "config.pbtxt"), []byte(fmt.Sprintf(scaleConfig, 4000+4000*k/n)), 0o644),
			os.WriteFile(filepath.Join(at, "1", "model.onnx"), m.Marshal(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestMoreModelsThanFitKeepTheirSLOs serves sixteen models from a device that holds five, through scheduler, backend
// and the layered executor. Every request is answered correctly and in time, and the metrics count what was evicted,
// where it was loaded from and how long that took (AdaInf §3.4.2).
func TestMoreModelsThanFitKeepTheirSLOs(t *testing.T) {
	const models = 16
	r, err := repo.Open(writeScales(t, models))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := cuda.OpenEmulated(cuda.Emulation{MemoryBytes: 4 << 20, Kernels: kernels.Reference()})
	if err != nil {
		t.Fatal(err)
	}
	e, err := layered.New(dev, layered.Config{DeviceBytes: 5*(16<<10) + 8<<10, PinnedBytes: 4 * (16 << 10)})
	if err != nil {
		t.Fatal(err)
	}
	config := backend.Config{Name: "small", Measure: measured, GPUs: []backend.GPU{{Name: "gpu 0", Executors: []device.Executor{e}, Core: -1}}}
	for i := range r.Models {
		m, err := device.NewModel(&r.Models[i], 0, backend.SlotBytesMax)
		if err != nil {
			t.Fatal(err)
		}
		config.Models = append(config.Models, m)
	}
	if config.Node, err = rdma.Open(rdma.Config{Token: token}); err != nil {
		t.Fatal(err)
	}
	defer config.Node.Close()
	b, err := backend.New(config)
	if err != nil {
		t.Fatal(err)
	}
	s := startScheduler(t, "127.0.0.1:0")
	defer s.stop(t)
	leave, err := b.Connect(context.Background(), backend.Connection{Scheduler: s.addr, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	before := metric(t, b, "downbeat_memory_loads_total", "")
	askScales(t, s.addr, models)
	for name, value := range map[string]string{"downbeat_memory_evictions_total": "pinned", "downbeat_memory_loads_total": "pinned", "downbeat_memory_hits_total": "",
		"downbeat_memory_load_seconds_total": "", "downbeat_memory_freed_total": "", "downbeat_memory_moved_bytes_total": "in", "downbeat_memory_bytes": "device"} {
		if name == "downbeat_memory_freed_total" {
			continue // one product needs no intermediates
		}
		if v := metric(t, b, name, value); v <= 0 {
			t.Errorf("%s{%s} is %v", name, value, v)
		}
	}
	for _, name := range []string{"downbeat_memory_evictions_total", "downbeat_memory_loads_total"} {
		if v := metric(t, b, name, "pageable"); v <= 0 {
			t.Errorf("%s{pageable} is %v: pinned memory held all", name, v)
		}
	}
	if loads := metric(t, b, "downbeat_memory_loads_total", "") - before; loads < models {
		t.Errorf("%v loads while serving", loads)
	}
	t.Logf("%+v", b.Stats()[0].Memory)
	if err := errors.Join(leave(), b.Close()); err != nil {
		t.Error(err)
	}
	if l := dev.Live(); l != (cuda.Live{}) {
		t.Errorf("left open: %+v", l)
	}
}

// measured returns profiles with a margin for a busy host: the kernels run in Go.
func measured(_ context.Context, _ measure.Timer, m *device.Model, _ *device.Slot) (*profile.Profile, error) {
	return profile.Linear(2*time.Millisecond, 3*time.Millisecond, m.BatchMax)
}

// askScales sends requests to every model in turn, more often to some, and checks each answer.
func askScales(t *testing.T, addr string, models int) {
	t.Helper()
	var names []string
	for k := range models {
		names = append(names, fmt.Sprintf("scale%02d", k))
	}
	c := dial(t, addr, names...)
	defer c.Close()
	var wait sync.WaitGroup
	for caller := range 4 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := range 60 {
				k := (i*5 + caller) % models
				if i%3 == 0 {
					k %= 3
				}
				if err := askScale(c, names[k], float32(k+1), float32(i)); err != nil {
					t.Errorf("%s: %v", names[k], err)
				}
			}
		}()
	}
	wait.Wait()
}

// askScale sends a request with the model's own SLO.
func askScale(c *frontend.Client, name string, factor, x float32) error {
	in := make([]byte, 256)
	for i := range 64 {
		binary.LittleEndian.PutUint32(in[4*i:], math.Float32bits(x+float32(i)))
	}
	r, err := c.InferCopy(context.Background(), name, in)
	if err != nil {
		return err
	}
	defer r.Release()
	for i := range 64 {
		if got, want := math.Float32frombits(binary.LittleEndian.Uint32(r.Data[4*i:])), factor*(x+float32(i)); got != want {
			return fmt.Errorf("element %d is %v, want %v", i, got, want)
		}
	}
	return nil
}

func TestFaultsAreChecked(t *testing.T) {
	for _, o := range []backend.Options{{Faults: "0:lost"}, {Emulate: 1, Faults: "1:lost"}, {Emulate: 1, Faults: "nonsense"}} {
		if _, err := backend.Start(context.Background(), o); err == nil || !strings.Contains(err.Error(), "fault: ") {
			t.Errorf("faults %q: %v", o.Faults, err)
		}
	}
}
