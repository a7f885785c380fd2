//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"downbeat.dev/bench/chaos"
)

// chaosScript is this test's binary as bin/downbeat.
func chaosScript(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "downbeat")
	text := fmt.Sprintf("#!/bin/sh\n%s=$(printf '%%s\\n' \"$@\") exec %s\n", argsVariable, exe)
	if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestChaosAccountsForEveryRequest runs an experiment without a fault and one whose backends are killed, on loopback:
// each request ends once, with its own bytes. How many end in time is the machine's affair here.
func TestChaosAccountsForEveryRequest(t *testing.T) {
	binary := chaosScript(t)
	o := chaos.Options{Binary: binary, Caller: []string{binary, "chaos", "-caller"}, Only: regexp.MustCompile("^(nothing-wrong|backend-killed)$"),
		Repeats: 1, Seed: 3, Loopback: true}
	n := 0
	err := chaos.Run(t.Context(), o, func(r chaos.Result) {
		n++
		// A machine whose timers are late by a whole deadline has none to spare: then some answers in time must do.
		least := r.Sent / 4
		if r.NoiseMax >= 100 {
			least = 1
		}
		if r.Broken != "" || r.Skipped != "" || r.Unaccounted != 0 || r.Wrong != 0 || r.Sent < 500 || r.Good < least {
			t.Errorf("%+v", r)
		}
		var line bytes.Buffer
		if err := chaos.WriteJSON(&line, r); err != nil {
			t.Fatal(err)
		}
		var keys map[string]any
		if err := json.Unmarshal(line.Bytes(), &keys); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"experiment", "repeats", "sent", "unaccounted", "wrong", "late_max_ms", "recover_p99_ms"} {
			if _, there := keys[key]; !there {
				t.Errorf("no key %q in %s", key, line.String())
			}
		}
	})
	if err != nil || n != 2 {
		t.Errorf("%d experiments, %v", n, err)
	}
}
