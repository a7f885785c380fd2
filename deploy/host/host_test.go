package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
