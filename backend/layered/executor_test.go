package layered

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/device/devicetest"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/kernels"
	"downbeat.dev/cuda/layers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func tensor(name string, datatype model.Datatype, shape ...int64) model.Tensor {
	return model.Tensor{Name: name, Datatype: datatype, Shape: shape}
}

// writeModel stores a graph of one input and one output row of FP32 and lays it out.
func writeModel(t *testing.T, g *onnx.Builder, batchMax int, width int64) *device.Model {
	t.Helper()
	m, err := g.Model(13)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "model.onnx")
	if err := os.WriteFile(path, m.Marshal(), 0o644); err != nil {
		t.Fatal(err)
	}
	in, out := []model.Tensor{tensor("x", "FP32", width)}, []model.Tensor{tensor("y", "FP32", width)}
	c := &repo.Config{Name: m.Graph.Name, Platform: repo.PlatformONNX, BatchMax: batchMax,
		Inputs: []repo.TensorConfig{{Tensor: in[0]}}, Outputs: []repo.TensorConfig{{Tensor: out[0]}}}
	d, err := device.NewModel(&repo.Model{Name: c.Name, Version: "1", Platform: repo.PlatformONNX, BatchMax: batchMax, Batched: true,
		Inputs: in, Outputs: out, ONNXPath: path, VersionDir: filepath.Dir(path), Config: c}, 0, devicetest.SlotBytesMax)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// twice returns y = x + x; next returns y = x·w + 1 with weights that double.
func twice(t *testing.T) *device.Model {
	g := onnx.NewBuilder("twice")
	x := g.Input("x", onnx.Float, onnx.Batched(4))
	g.Output("y", g.Node("Add", []string{x, x}), onnx.Float, onnx.Batched(4))
	return writeModel(t, g, 5, 4)
}

func next(t *testing.T) *device.Model { return times(t, 2) }

// corrupt returns a model whose file is invalid.
func corrupt(t *testing.T) *device.Model {
	m := twice(t)
	if err := os.WriteFile(m.Source.ONNXPath, []byte("no model"), 0o644); err != nil {
		t.Fatal(err)
	}
	return m
}

// times returns y = x·w + 1 with weights that multiply by factor.
func times(t *testing.T, factor float32) *device.Model {
	g := onnx.NewBuilder("next")
	x := g.Input("x", onnx.Float, onnx.Batched(2))
	w := g.Const(onnx.FloatTensor("", []float32{factor, 0, 0, factor}, 2, 2))
	y := g.Node("MatMul", []string{x, w})
	g.Output("y", g.Node("Add", []string{y, g.Const(onnx.FloatTensor("", []float32{1, 1}, 2))}), onnx.Float, onnx.Batched(2))
	return writeModel(t, g, 3, 2)
}

// wide returns y = x·w with width² weights.
func wide(t *testing.T, width int64) *device.Model {
	g := onnx.NewBuilder("wide")
	w := g.Const(onnx.FloatTensor("", make([]float32, width*width), width, width))
	g.Output("y", g.Node("MatMul", []string{g.Input("x", onnx.Float, onnx.Batched(width)), w}), onnx.Float, onnx.Batched(width))
	return writeModel(t, g, 2, width)
}

// patient is a timeout longer than any stall of a host.
const patient = 30 * time.Second

func open(t *testing.T, fault func(cuda.Site) cuda.Fault, timeout time.Duration) *Executor {
	t.Helper()
	d, err := cuda.OpenEmulated(cuda.Emulation{MemoryBytes: 8 << 20, Kernels: kernels.Reference(), Fault: fault})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(d, Config{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// openAny opens a GPU if the tests require one, otherwise the emulated device.
func openAny(t *testing.T) *Executor {
	t.Helper()
	if os.Getenv("DOWNBEAT_REQUIRE_GPU") != "1" {
		return open(t, nil, patient)
	}
	d, err := cuda.Open(cuda.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(d, Config{DeviceBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestContract(t *testing.T) {
	devicetest.Contract(t, contractCase(t))
}

// contractCase returns the models of the contract, on a whole device.
func contractCase(t *testing.T) devicetest.Case {
	a, b := next(t), twice(t)
	odd := onnx.NewBuilder("odd")
	odd.Output("y", odd.Node("Einsum", []string{odd.Input("x", onnx.Float, onnx.Batched(4))}), onnx.Float, onnx.Batched(4))
	affine := func(input []byte, factor, shift float32) []byte {
		out := bytes.Clone(input)
		for i := 0; i < len(out); i += 4 {
			v := factor*math.Float32frombits(binary.LittleEndian.Uint32(out[i:])) + shift
			binary.LittleEndian.PutUint32(out[i:], math.Float32bits(v))
		}
		return out
	}
	return devicetest.Case{
		Open:    func(t *testing.T) device.Executor { return openAny(t) },
		Models:  []*device.Model{a, b},
		Weights: times(t, 4).Source,
		Updated: func(input []byte) []byte { return affine(input, 4, 1) },
		Other:   b.Source,
		Corrupt: corrupt(t),
		Foreign: writeModel(t, odd, 2, 4),
		Input: func(_ *device.Model, r *rand.Rand, payload []byte) bool {
			for i := 0; i < len(payload); i += 4 {
				binary.LittleEndian.PutUint32(payload[i:], math.Float32bits(r.Float32()))
			}
			return true
		},
		Want: func(m *device.Model, input []byte) []byte {
			if m == b {
				return affine(input, 2, 0)
			}
			return affine(input, 2, 1)
		},
	}
}

func TestUnsupportedOperatorsAreNamed(t *testing.T) {
	g := onnx.NewBuilder("odd")
	x := g.Input("x", onnx.Float, onnx.Batched(4))
	g.Output("y", g.Node("Bernoulli", []string{g.Node("Einsum", []string{x})}), onnx.Float, onnx.Batched(4))
	e := open(t, nil, patient)
	defer e.Close()
	m := writeModel(t, g, 2, 4)
	_, err := e.Load(m)
	if !errors.Is(err, device.ErrUnsupported) || !errors.Is(err, layers.ErrUnsupported) || !strings.Contains(err.Error(), "Bernoulli, Einsum") {
		t.Errorf("load: %v", err)
	}
}

func TestLostAndHungDevicesAreReported(t *testing.T) {
	for name, fault := range map[string]cuda.Fault{"lost": {Code: cuda.CodeDeviceUnavailable}, "hung": {Hang: true}} {
		armed := false
		e := open(t, func(s cuda.Site) cuda.Fault {
			if armed && s.Op == "copy in" {
				return fault
			}
			return cuda.Fault{}
		}, 2*time.Second)
		m := twice(t)
		slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
		if err := devicetest.Load(e, m, slots); err != nil {
			t.Fatal(err)
		}
		armed = true
		if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 2}); !errors.Is(err, device.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
		err := e.Close()
		if name == "lost" && err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
}

// TestLoadFailsCleanlyAtEverySite shows that for any allocation that fails during a load, the load returns the error,
// nothing leaks, and the next load succeeds.
func TestLoadFailsCleanlyAtEverySite(t *testing.T) {
	for n := 0; ; n++ {
		calls, armed, hit := 0, false, ""
		e := open(t, func(s cuda.Site) cuda.Fault {
			if !armed || s.Op == "copy in" || s.Op == "copy out" || s.Op == "launch" {
				return cuda.Fault{}
			}
			if calls++; calls == n+1 {
				hit = s.Op
				return cuda.Fault{Code: cuda.CodeOutOfMemory}
			}
			return cuda.Fault{}
		}, patient)
		m := next(t)
		slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
		armed = true
		err := devicetest.Load(e, m, slots)
		armed = false
		if hit == "register" {
			if err != nil || e.Memory().Unpinned != 1 {
				t.Errorf("a slot that cannot be pinned: %v, %d unpinned", err, e.Memory().Unpinned)
			}
		} else if hit != "" && !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("site %d %s: %v", n, hit, err)
		}
		if err != nil {
			if err := devicetest.Load(e, m, slots); err != nil {
				t.Errorf("site %d %s: second load: %v", n, hit, err)
			}
		}
		if err := e.Close(); err != nil {
			t.Errorf("site %d %s: close: %v", n, hit, err)
		}
		if hit == "" {
			break
		}
	}
}

func TestOpenWithoutAGPUIsNotSupported(t *testing.T) {
	_, err := Open(4095, Config{})
	var refused *cuda.Error // by the driver, where there is one
	if gpus, _ := cuda.Count(); gpus > 0 && !errors.As(err, &refused) || gpus == 0 && !errors.Is(err, cuda.ErrNotSupported) {
		t.Fatalf("GPU 4095, of %d: %v", gpus, err)
	}
}

// TestPrecisionIsAParameterOfTheModel shows that a model's parameter "precision" sets the GPU's number format while
// requests stay FP32, and that unknown values are refused by name.
func TestPrecisionIsAParameterOfTheModel(t *testing.T) {
	for precision, wrong := range map[string]string{"fp16": "", "bf16": "", "fp32": "", "fp8": `precision "fp8": want fp32, fp16 or bf16`} {
		e := open(t, nil, patient)
		m := next(t)
		m.Source.Config.Params = map[string]string{"precision": precision}
		slots := devicetest.Slots(t, 1, device.SlotBytes([]*device.Model{m}))
		err := devicetest.Load(e, m, slots)
		if wrong != "" {
			if err == nil || !strings.Contains(err.Error(), wrong) {
				t.Errorf("%s: %v", precision, err)
			}
		} else if err != nil {
			t.Errorf("%s: %v", precision, err)
		} else {
			in := slots[0].Input(m, 0, 1)
			for i := 0; i < len(in); i += 4 {
				binary.LittleEndian.PutUint32(in[i:], math.Float32bits(1.5))
			}
			if err := device.Execute(e, device.Batch{Model: m, Slot: slots[0], Rows: 1}); err != nil {
				t.Error(err)
			}
			if y := math.Float32frombits(binary.LittleEndian.Uint32(slots[0].Output(m, 0, 1))); y != 4 {
				t.Errorf("%s: 2·1.5 + 1 is %v", precision, y)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}
