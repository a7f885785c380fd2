package main

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"downbeat.dev/bench/drift"
)

// TestLinesAreOpenedFirst: a file for the periods' lines that cannot be written is an error before a policy runs.
func TestLinesAreOpenedFirst(t *testing.T) {
	setting := drift.DefaultSetting()
	setting.Models = "no models, so that a policy that runs fails otherwise"
	policies, err := drift.Select("none")
	if err != nil {
		t.Fatal(err)
	}

	err = runDrift(t.Context(), setting, policies, "1", "json", filepath.Join(t.TempDir(), "missing", "periods.jsonl"))
	if !errors.Is(err, fs.ErrNotExist) || err.Error()[:7] != "-lines:" {
		t.Errorf("%v, want that the directory of -lines does not exist", err)
	}
}
