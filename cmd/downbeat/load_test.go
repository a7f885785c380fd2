//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReportIsChecked: a page that cannot be written is refused before the load. The check leaves a page of an earlier
// run as it is, and no empty file.
func TestReportIsChecked(t *testing.T) {
	dir := t.TempDir()
	if err := (&loadFlags{report: filepath.Join(dir, "missing", "load.html")}).checkReport(); err == nil || !strings.Contains(err.Error(), "load: report:") {
		t.Errorf("a page in a missing directory: %v", err)
	}

	page := filepath.Join(dir, "load.html")
	if err := (&loadFlags{report: page}).checkReport(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(page); !os.IsNotExist(err) {
		t.Errorf("after the check there is a page: %v", err)
	}

	if err := os.WriteFile(page, []byte("earlier"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := (&loadFlags{report: page}).checkReport(); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(page); err != nil || string(kept) != "earlier" {
		t.Errorf("the check left %q, %v of an earlier page", kept, err)
	}
}
