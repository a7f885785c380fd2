//go:build cgo

package ort

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openRuntime skips the test if ONNX Runtime is not installed, unless ORT_LIB is set.
func openRuntime(t testing.TB) *Runtime {
	t.Helper()
	library := os.Getenv("ORT_LIB")
	if library == "" {
		library, _ = filepath.Abs(filepath.Join("..", "..", ".cache", "ort", Version, libraryName))
	}
	r, err := Open(library)
	if errors.Is(err, ErrMissing) && os.Getenv("ORT_LIB") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func float(b []byte) float32       { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
func putFloat(b []byte, f float32) { binary.LittleEndian.PutUint32(b, math.Float32bits(f)) }

func TestContract(t *testing.T) {
	r := openRuntime(t)
	c := contractCase(t)
	for name, open := range map[string]func(t *testing.T) device.Executor{
		"Core":       func(*testing.T) device.Executor { return r.Executor() },
		"TwoThreads": func(*testing.T) device.Executor { return r.ExecutorOf(2) },
		"Lane": func(t *testing.T) device.Executor {
			return c.AmongLanes(t, []device.Executor{r.Executor(), r.Executor()})
		},
		"LaneOfThreads": func(t *testing.T) device.Executor {
			return c.AmongLanes(t, []device.Executor{r.ExecutorOf(2), r.ExecutorOf(2)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := c
			c.Open = open
			devicetest.Contract(t, c)
			if n := len(r.sessions); n != 0 {
				t.Errorf("%d sessions left after all executors were closed", n)
			}
		})
	}
}

func contractCase(t *testing.T) devicetest.Case {
	identity, twice := layout(t, identity(t, 8)), layout(t, times(t, 5, 2))
	scaled := func(in []byte, factor float32) []byte {
		out := append([]byte(nil), in...)
		for i := 0; i < len(in); i += 4 {
			putFloat(out[i:], factor*float(in[i:]))
		}
		return out
	}
	broken, emulated := *layout(t, times(t, 5, 2)), *identity
	if err := os.WriteFile(broken.Source.ONNXPath, []byte("no model"), 0o644); err != nil {
		t.Fatal(err)
	}
	emulated.Source = &repo.Model{Name: "emulated", Platform: repo.PlatformEmulated}
	return devicetest.Case{
		Models:  []*device.Model{twice, identity},
		Weights: times(t, 5, 3),
		Updated: func(in []byte) []byte { return scaled(in, 3) },
		Other:   identity.Source,
		Corrupt: &broken,
		Foreign: &emulated,
		Input: func(m *device.Model, r *rand.Rand, payload []byte) bool {
			if m == twice {
				for i := 0; i < len(payload); i += 4 {
					putFloat(payload[i:], r.Float32())
				}
				return true
			}
			for i := range payload {
				payload[i] = byte(r.Uint32())
			}
			last := m.Inputs[len(m.Inputs)-1] // BOOL is 0 or 1
			for i := range last.Bytes {
				payload[last.Offset+i] &= 1
			}
			return true
		},
		Want: func(m *device.Model, in []byte) []byte {
			if m == twice {
				return scaled(in, 2)
			}
			return in
		},
	}
}

func TestExecutorsShareASession(t *testing.T) {
	r := openRuntime(t)
	m := layout(t, twice(t, 4, onnx.Batched(4)))
	a, b := r.Executor(), r.Executor()
	slots := devicetest.Slots(t, 2, device.SlotBytes([]*device.Model{m}))
	if err := errors.Join(devicetest.Load(a, m, slots), devicetest.Load(b, m, slots)); err != nil {
		t.Fatal(err)
	}
	if n := len(r.sessions); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	devicetest.SetInput(m, slots[1], 0, make([]byte, m.InBytes))
	if err := device.Execute(b, device.Batch{Model: m, Slot: slots[1], Rows: 1}); err != nil {
		t.Errorf("after the other executor was closed: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestThreadsAreAnExecutorsOwn: executors of several threads share no session, because its threads are one lane's.
func TestThreadsAreAnExecutorsOwn(t *testing.T) {
	r := openRuntime(t)
	m := layout(t, times(t, 2, 2))
	for i := range 2 {
		e := r.ExecutorOf(2)
		defer e.Close()
		f, err := e.Load(m)
		if err != nil || f.Warm || len(r.sessions) != i+1 {
			t.Errorf("executor %d: %v, warmed up by another one %v, %d sessions", i, err, f.Warm, len(r.sessions))
		}
	}
}

func TestModelWithoutBatchDimension(t *testing.T) {
	r := openRuntime(t)
	m := layout(t, twice(t, 0, onnx.Fixed(4)))
	e := r.Executor()
	defer e.Close()
	slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
	if err := devicetest.Load(e, m, slots); err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, m.InBytes)
	putFloat(payload[8:], 21)
	devicetest.SetInput(m, slots[0], 0, payload)
	if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err != nil {
		t.Fatal(err)
	}
	if got := float(devicetest.Output(m, slots[0], 0)[8:]); got != 42 {
		t.Errorf("got %v, want 42", got)
	}
}

// TestBadModels shows that each is refused with an error that says what is wrong, and that the executor stays usable.
func TestBadModels(t *testing.T) {
	r := openRuntime(t)
	garbage := twice(t, 4, onnx.Batched(4))
	if err := os.WriteFile(garbage.ONNXPath, []byte("this is no model, whatever its name says"), 0o644); err != nil {
		t.Fatal(err)
	}
	gone := twice(t, 4, onnx.Batched(4))
	os.Remove(gone.ONNXPath)
	renamed := twice(t, 4, onnx.Batched(4))
	renamed.Inputs[0].Name = "image"
	retyped := twice(t, 4, onnx.Batched(4))
	retyped.Outputs[0].Datatype = "INT32"
	reshaped := twice(t, 4, onnx.Batched(4))
	reshaped.Inputs[0].Shape, reshaped.Config.Inputs[0].Shape = []int64{2, 3}, []int64{2, 3}
	two := onnx.NewBuilder("two")
	a, b := two.Input("a", onnx.Float, onnx.Batched(1)), two.Input("b", onnx.Float, onnx.Batched(1))
	two.Output("y", two.Node("Add", []string{a, b}), onnx.Float, onnx.Batched(1))
	extra := writeModel(t, "two", 4, two, []model.Tensor{tensor("a", "FP32", 1)}, []model.Tensor{tensor("y", "FP32", 1)})
	for name, c := range map[string]struct {
		model *repo.Model
		want  string
	}{
		"not ONNX":            {garbage, "not an ONNX model"},
		"file gone":           {gone, gone.ONNXPath},
		"wrong name":          {renamed, `config.pbtxt names input "image", the graph has x`},
		"wrong datatype":      {retyped, `output "y": data_type is INT32 in config.pbtxt, the graph has FP32`},
		"wrong shape":         {reshaped, `input "x": dims are [2 3] in config.pbtxt, the graph has [4]`},
		"fixed batch":         {twice(t, 4, onnx.Fixed(1, 4)), "first dimension is fixed to 1"},
		"input not in config": {extra, `the graph needs input "b"`},
	} {
		t.Run(name, func(t *testing.T) {
			m := layout(t, c.model)
			e := r.Executor()
			defer e.Close()
			slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
			err := devicetest.Load(e, m, slots)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err == nil || !strings.Contains(err.Error(), "not loaded") {
				t.Errorf("a model that was refused is executed: %v", err)
			}
		})
	}
	if n := len(r.sessions); n != 0 {
		t.Errorf("%d sessions left", n)
	}
}

func TestOpenWithoutLibrary(t *testing.T) {
	openRuntime(t) // once one library is loaded, another is refused by name
	if _, err := Open("/nowhere/libonnxruntime.so.1"); err == nil || !strings.Contains(err.Error(), "/nowhere/") {
		t.Errorf("error %v, want one that names the path", err)
	}
}

// TestParallel runs two executors of one session on two threads, for the race detector.
func TestParallel(t *testing.T) {
	r := openRuntime(t)
	m := layout(t, twice(t, 8, onnx.Batched(4)))
	done := make(chan error, 2)
	for range 2 {
		e := r.Executor()
		slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
		go func() {
			runtime.LockOSThread()
			defer e.Close()
			for i := range 200 {
				payload := make([]byte, m.InBytes)
				putFloat(payload, float32(i))
				devicetest.SetInput(m, slots[0], i%8, payload)
				if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 8}); err != nil {
					done <- err
					return
				}
				if got := float(devicetest.Output(m, slots[0], i%8)); got != float32(2*i) {
					t.Errorf("got %v, want %v", got, 2*i)
				}
			}
			done <- nil
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
}
