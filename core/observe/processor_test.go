package observe

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestProcessorWaitsOnlyGrow: threads end, and their numbers are reused, but their waits still count.
func TestProcessorWaitsOnlyGrow(t *testing.T) {
	w := &processorWaits{tasks: t.TempDir()}
	waits := func(thread, schedstat string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(w.tasks, thread), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(w.tasks, thread, "schedstat"), []byte(schedstat), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(what string, ms time.Duration, ok bool) {
		t.Helper()
		if total, told := w.lookAgain(); total != ms*time.Millisecond || told != ok {
			t.Errorf("%s: %v %v, want %d ms", what, total, told, ms)
		}
	}

	want("no thread tells", 0, false)
	waits("7", "900000000 5000000 12\n")
	waits("8", "100 2000000 1\n")
	want("two threads", 7, true)
	waits("7", "900000000 6000000 13\n")
	want("one waits more", 8, true)
	if err := os.RemoveAll(filepath.Join(w.tasks, "7")); err != nil {
		t.Fatal(err)
	}
	want("it ends", 8, true)
	waits("7", "100 4000000 1\n")
	waits("8", "100 1000000 1\n")
	want("another one has its number, and another one the other's", 13, true)
	waits("8", "nonsense")
	want("a file that is no schedstat", 13, true)
}
