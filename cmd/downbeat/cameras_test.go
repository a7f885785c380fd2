//go:build linux

package main

import (
	"strings"
	"testing"
)

// TestDemoChecksCameras before it starts anything.
func TestDemoChecksCameras(t *testing.T) {
	for _, n := range []string{"-2", "65"} {
		if err := runDemo(t.Context(), []string{"-cameras", n}); err == nil || !strings.Contains(err.Error(), "cameras "+n+": want -1 to 64") {
			t.Errorf("%s cameras: %v", n, err)
		}
	}
}

// TestStreetsAreDrawn: cameras see as many streets as were rendered, each of its own.
func TestStreetsAreDrawn(t *testing.T) {
	streets, err := drawStreets()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range streets {
		seen[string(s)] = true
	}
	if len(streets) != streetsDrawn || len(seen) != streetsDrawn {
		t.Errorf("%d streets, %d of them different; want %d", len(streets), len(seen), streetsDrawn)
	}
}
