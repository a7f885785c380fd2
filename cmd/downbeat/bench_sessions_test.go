package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFigureOfRim: a figure of Rim's paper is one command, which leaves its numbers and what the paper says beside them.
func TestFigureOfRim(t *testing.T) {
	dir := t.TempDir()
	if err := benchFigure().run(t.Context(), []string{"rim", "f8", "-out", dir}); err != nil {
		t.Fatal(err)
	}
	numbers, err := os.ReadFile(filepath.Join(dir, "f8.csv"))
	if err != nil || strings.Count(string(numbers), "\n") != 10 {
		t.Errorf("%v, %s; want a header and nine rows", err, numbers)
	}
	claims, err := os.ReadFile(filepath.Join(dir, "claims.csv"))
	if err != nil || !strings.Contains(string(claims), "less than a handful") {
		t.Errorf("%v, %s", err, claims)
	}

	for want, args := range map[string][]string{
		`figure "f99": want one of f4, f4host`: {"rim", "f99", "-out", dir},
		`want downbeat bench figure PAPER ID`:  {"rom", "f8"},
	} {
		if err := benchFigure().run(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one that says %q", args, err, want)
		}
	}
	for want, args := range map[string][]string{
		`workload "W-7": want W-1`:       {"-workload", "W-7"},
		`-policy "x": want all`:          {"-policy", "x"},
		"-o xml: want table or json":     {"-o", "xml"},
		"-workers -3: want 0 to 1000":    {"-workers", "-3"},
		"no-such-file.json: no such fil": {"-workload", "./no-such-file.json"},
	} {
		if err := benchSessions().run(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one that says %q", args, err, want)
		}
	}
}
