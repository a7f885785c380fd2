//go:build cuda && linux && cgo

package cuda_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"downbeat.dev/cuda"
)

// TestInventoryOfATestLibrary lists two GPUs of a management library made for the test. It shows the results for MIG,
// the compute mode and the multi-process service, without a call that an older library lacks. The loader's path must
// name the library, so the test runs itself again with it.
func TestInventoryOfATestLibrary(t *testing.T) {
	if os.Getenv("DOWNBEAT_INVENTORY") == "1" {
		gpus, err := cuda.Inventory()
		text, _ := json.Marshal(gpus)
		fmt.Printf("inventory %v %s\n", err, text)
		return
	}
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join("testdata", "nvml.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "control"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestInventoryOfATestLibrary$")
	cmd.Env = append(os.Environ(), "DOWNBEAT_INVENTORY=1", "LD_LIBRARY_PATH="+dir, "CUDA_MPS_PIPE_DIRECTORY="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var gpus []cuda.GPU
	_, after, _ := strings.Cut(string(out), "inventory <nil> ")
	line, _, _ := strings.Cut(after, "\n")
	if json.Unmarshal([]byte(line), &gpus) != nil {
		t.Fatalf("the child says: %s", out)
	}
	if len(gpus) != 2 {
		t.Fatalf("%d GPUs: %+v", len(gpus), gpus)
	}
	whole, split := gpus[0], gpus[1]
	if whole.Name != "Test GPU" || whole.Driver != "999.1" || whole.MemoryBytes != 16<<30 || whole.MemoryFree != 4<<30 || whole.Utilization != 37 ||
		whole.ClockMHz != 1410 || whole.MIG || !whole.Exclusive || !whole.MPSDaemon || whole.MPS != 0 || whole.Processes != 0 {
		t.Errorf("GPU 0: %+v", whole)
	}
	if !split.MIG || split.Exclusive || len(split.Instances) != 2 || split.Instances[0] != (cuda.Instance{Name: "Test GPU MIG 1g.8gb", UUID: "MIG-a", MemoryBytes: 8 << 30}) || split.Instances[1].UUID != "MIG-b" {
		t.Errorf("GPU 1: %+v", split)
	}
	if whole.Watts != 61.5 || whole.WattsMost != 0 || whole.Joules != 7200.5 || split.Watts != 0 || split.Joules != 7200.5 {
		t.Errorf("power and energy: %+v, %+v", whole, split)
	}
}
