package goodput

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
)

func TestBesideShowsWhatDeferringGains(t *testing.T) {
	var b strings.Builder
	if err := Beside(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 2+len(besideRates) {
		t.Fatalf("%d lines, want a header, %d loads and a note:\n%s", len(lines), len(besideRates), b.String())
	}
	t.Logf("\n%s", b.String())
	var row [7]float64
	for i, f := range strings.Fields(lines[len(besideRates)]) {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil || i >= len(row) {
			t.Fatalf("last load %q: field %d is %q, want 7 numbers", lines[len(besideRates)], i, f)
		}
		row[i] = v
	}
	if row[2] > 1.5 || row[1] < 1.5*row[4] || row[3] < 1.5*row[6] {
		t.Errorf("at %v r/s: deferred %v r/s, %v %% bad, batches of %v; eager %v r/s, batches of %v: want few bad and half as much again",
			row[0], row[1], row[2], row[3], row[4], row[6])
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Beside(ctx, &b); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: error %v", err)
	}
}
