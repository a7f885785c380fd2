package gpu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/backend/ort"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/layers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check runs cases on the emulated device, or on the GPU when one is required.
func check(t *testing.T, cases []Case, capture bool, prefer string) {
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
	config := CheckConfig{Library: library, Seed: seed, Capture: capture, Timeout: time.Minute, Prefer: prefer,
		Precisions: []layers.Precision{layers.FP32, layers.FP16, layers.BF16}}
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
	check(t, cases(), capture, "")
}

// Every model that we ship runs layer by layer, and agrees.
func TestShippedModelsAgreeWithONNXRuntime(t *testing.T) {
	checkNetworks(t, func() []Case {
		cases, err := files(filepath.Join("..", "..", "models"))
		if err != nil {
			t.Fatal(err)
		}
		if len(cases) == 0 {
			t.Fatal("no models: make models writes them")
		}
		for i := range cases {
			cases[i].Batches = []int{2}
		}
		return cases
	}, true)
}
