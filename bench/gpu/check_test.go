package gpu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/ort"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
)

// A check that is interrupted says so; what it did not come to has not failed.
func TestCheckThatIsInterrupted(t *testing.T) {
	d, err := Emulated()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = Check(ctx, d, CheckConfig{Library: "/nowhere", Timeout: time.Minute}, Operators(), func(c Checked) { t.Errorf("%+v", c) })
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted in case 1 of") {
		t.Error(err)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check runs cases on the emulated device, or on the GPU when one is required.
func check(t *testing.T, cases []Case, capture bool, prefer string) {
	checkWith(t, cases, CheckConfig{Capture: capture, Prefer: prefer, Libraries: "none"})
}

func checkWith(t *testing.T, cases []Case, config CheckConfig) {
	t.Helper()
	library := os.Getenv("ORT_LIB")
	if library == "" {
		library, _ = filepath.Abs(filepath.Join("..", "..", ".cache", "ort", ort.Version, "libonnxruntime.so.1"))
	}
	if _, err := ort.Open(library); err != nil {
		if errors.Is(err, ort.ErrMissing) && os.Getenv("ORT_LIB") == "" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	d, err := Emulated()
	if os.Getenv("DOWNBEAT_REQUIRE_GPU") == "1" {
		d, err = cuda.Open(cuda.Config{})
	}
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	config.Library, config.Seed, config.Timeout = library, seed, time.Minute
	if config.Precisions == nil {
		config.Precisions = []layers.Precision{layers.FP32, layers.FP16, layers.BF16}
	}
	err = Check(context.Background(), d, config, cases, func(c Checked) {
		if !c.Passed {
			t.Errorf("%s in %s, batch %d, by layer %v: %s", c.Case, c.Precision, c.Batch, c.ByLayer, c.Reason)
		}
	})
	if err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestOperatorsAgreeWithONNXRuntime(t *testing.T) { check(t, Operators(), true, "") }

// TestTrainingAgreesWithONNXRuntime shows that a whole training step, with its gradients, is a layered program like any
// other: run at once and layer by layer, it gives the loss, weights and moments of ONNX Runtime.
func TestTrainingAgreesWithONNXRuntime(t *testing.T) {
	cases, err := Training()
	if err != nil {
		t.Fatal(err)
	}
	checkWith(t, cases, CheckConfig{Capture: true, Libraries: "none", Precisions: []layers.Precision{layers.FP32}})
}

// Every way to do a product, a convolution or attention is right, not only the one that would be taken: the
// tiles, the libraries' algorithms (DOWNBEAT_LIBRARIES names their folders), and whichever is the fastest.
func TestEveryOptionAgreesWithONNXRuntime(t *testing.T) {
	if os.Getenv("DOWNBEAT_REQUIRE_GPU") != "1" {
		t.Skip("the emulated device has one option for each step")
	}
	cases := append(optionCases(), Networks()[2])
	for i := range cases {
		cases[i].Batches = cases[i].Batches[:1]
	}
	for _, prefer := range []string{"tensor_256x128", "tensor_128x128", "tensor_128x64", "tensor_64x128", "tensor_64x64", "tensor_32x64/1",
		"tensor_32x64/2", "tensor_32x64/4", "conv", "gemm", "attention_f16", "attention_bf16", "cublasLt/0", "cublasLt/1", "cudnn/0", "cudnn/1", "tuned"} {
		t.Run(strings.ReplaceAll(prefer, "/", " "), func(t *testing.T) {
			c := CheckConfig{Capture: true, Prefer: prefer, Libraries: os.Getenv("DOWNBEAT_LIBRARIES")}
			if prefer == "tuned" {
				c.Prefer, c.Tune = "", true
			}
			checkWith(t, cases, c)
		})
	}
}

func TestNetworksAgreeWithONNXRuntime(t *testing.T) {
	checkNetworks(t, func() []Case { return Networks()[:2] }, false)
}

func TestEncoderAgreesWithONNXRuntime(t *testing.T) {
	checkNetworks(t, func() []Case { return Networks()[2:] }, true)
}

// checkNetworks leaves the race detector out: a network's arithmetic in Go takes minutes under it, and
// the operators have shown the same code.
func checkNetworks(t *testing.T, cases func() []Case, capture bool) {
	t.Helper()
	if raceEnabled {
		t.Skip("under the race detector")
	}
	c := CheckConfig{Capture: capture, Libraries: "none"}
	if os.Getenv("DOWNBEAT_REQUIRE_GPU") != "1" { // arithmetic in Go takes long; the operators run in all precisions
		c.Precisions = []layers.Precision{layers.FP32, layers.BF16}
	}
	checkWith(t, cases(), c)
}

// Every kind of model that we ship, and the largest, run layer by layer, and agrees.
func TestShippedModelsAgreeWithONNXRuntime(t *testing.T) {
	checkNetworks(t, func() []Case {
		cases, err := fileCases(filepath.Join("..", "..", "models"))
		if err != nil {
			t.Fatal(err)
		}
		if len(cases) == 0 {
			t.Fatal("no models: make models writes them")
		}
		cases = slices.DeleteFunc(cases, func(c Case) bool { return !strings.Contains(c.Name, "-s/") && !strings.Contains(c.Name, "detector-l/") })
		for i := range cases {
			cases[i].Batches = []int{8}
		}
		return cases
	}, true)
}
