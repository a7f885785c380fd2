package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"downbeat.dev/cuda"
)

func fake(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func find(t *testing.T, all []Finding, what string) Finding {
	t.Helper()
	for _, f := range all {
		if f.What == what {
			return f
		}
	}
	t.Fatalf("no finding on %s", what)
	return Finding{}
}

func TestKernelFindingsSayWhatToChange(t *testing.T) {
	root := fake(t, map[string]string{
		"proc/meminfo": "MemTotal: 1 kB\nHugePages_Free:       0\nHugepagesize:    2048 kB\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
	})
	all := Kernel(root)
	for _, what := range []string{"huge pages", "CPU governor"} {
		if f := find(t, all, what); f.Verdict != Slower || f.Change == "" {
			t.Errorf("%s: got %+v, want slower with a change", what, f)
		}
	}
	root = fake(t, map[string]string{
		"proc/meminfo": "HugePages_Free: 64\nHugepagesize: 2048 kB\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
	})
	for _, what := range []string{"huge pages", "CPU governor"} {
		if f := find(t, Kernel(root), what); f.Verdict != Good || f.Change != "" {
			t.Errorf("%s: got %+v, want ok", what, f)
		}
	}
	var out strings.Builder
	Table(&out, all)
	if !strings.Contains(out.String(), "→ cpupower") {
		t.Errorf("the table lacks the change:\n%s", out.String())
	}
}

func TestUnreadableFilesAreFindingsNotErrors(t *testing.T) {
	if f := find(t, Kernel(t.TempDir()), "huge pages"); f.Verdict != Absent {
		t.Errorf("got %+v", f)
	}
}

func TestGPUsSayWhatIsInTheWay(t *testing.T) {
	plain := cuda.GPU{Name: "X", MemoryFree: 4 << 30, MemoryBytes: 16 << 30, Driver: "580.1"}
	if f := describeGPU(plain); f.Verdict != Good || f.Change != "" || !strings.HasPrefix(f.Found, "X, 4096 of 16384 MiB free, driver 580.1") {
		t.Errorf("%+v", f)
	}
	for name, c := range map[string]struct {
		change func(*cuda.GPU)
		found  string
		advice string
	}{
		"split": {func(g *cuda.GPU) {
			g.MIG, g.Instances = true, []cuda.Instance{{Name: "1g", UUID: "MIG-a", MemoryBytes: 8 << 30}}
		}, "MIG with 1 instances; 1g, 8192 MiB, MIG-a", "CUDA_VISIBLE_DEVICES"},
		"unsplit":   {func(g *cuda.GPU) { g.MIG = true }, "MIG with 0 instances", "-mig 0"},
		"exclusive": {func(g *cuda.GPU) { g.Exclusive = true }, "", "-c 0"},
		"busy":      {func(g *cuda.GPU) { g.Processes, g.MPS, g.MPSDaemon = 2, 1, true }, "MPS runs (1 processes)", "3 other processes"},
	} {
		g := plain
		c.change(&g)
		if f := describeGPU(g); f.Verdict != Slower || !strings.Contains(f.Found, c.found) || !strings.Contains(f.Change, c.advice) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
