package symphony

import (
	"context"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/figure"
)

// TestCellsAreTable3s: 7,560 cells, and a sample that takes none twice and meets every level.
func TestCellsAreTable3s(t *testing.T) {
	cells := table3()
	if len(cells) != 7560 {
		t.Fatalf("%d cells, want 7560", len(cells))
	}
	seen := map[string]bool{}
	levels := map[string]bool{}
	for _, s := range sampleCells(cells, 252) {
		if seen[s.Name] {
			t.Errorf("%s is taken twice", s.Name)
		}
		seen[s.Name] = true
		for i, level := range strings.Split(s.Name, "-") {
			levels[string(rune('a'+i))+level] = true
		}
	}
	if want := 6 + 6 + 7 + 5 + 6; len(levels) != want {
		t.Errorf("the sample meets %d levels, want %d", len(levels), want)
	}
}

// TestFiguresAreMade draws those that take little, with short inputs: each has numbers of its header's width, a
// claim, and what it says is published.
func TestFiguresAreMade(t *testing.T) {
	in := DefaultInputs()
	in.Goodput.Seeds, in.Goodput.Span, in.Goodput.Precision = 1, time.Second, 0.1
	in.Limit = 20 * time.Millisecond
	if err := in.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"t1", "t2", "t4", "f8", "f9", "s3"} {
		f, err := FindFigure(id)
		if err != nil {
			t.Fatal(err)
		}
		d, err := f.Draw(context.Background(), &in)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		checkDrawing(t, id, d)
	}
}

func checkDrawing(t *testing.T, id string, d *figure.Drawing) {
	t.Helper()
	if len(d.Records) == 0 || len(d.Claims) == 0 {
		t.Errorf("%s: %d records, %d claims", id, len(d.Records), len(d.Claims))
	}
	for _, r := range d.Records {
		if len(r) != len(d.Header) {
			t.Errorf("%s: record %v under the header %v", id, r, d.Header)
		}
	}
	for _, c := range d.Claims {
		if c.What == "" || c.Published == "" || c.Ours == "" || c.Verdict == "" {
			t.Errorf("%s: %+v", id, c)
		}
		if strings.Contains(c.Ours, "NaN") || strings.Contains(c.Ours, "Inf") {
			t.Errorf("%s: %s", id, c.Ours)
		}
	}
}

func TestInputsAreRefused(t *testing.T) {
	for want, spoil := range map[string]func(*Inputs){
		"seeds 0":     func(in *Inputs) { in.Goodput.Seeds = 0 },
		"span 1ms":    func(in *Inputs) { in.Goodput.Span = time.Millisecond },
		"cells 8000":  func(in *Inputs) { in.Cells = 8000 },
		"workload of": func(in *Inputs) { in.Span = 0 },
		"limit 0s":    func(in *Inputs) { in.Limit = 0 },
	} {
		in := DefaultInputs()
		spoil(&in)
		if err := in.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one that says %q", err, want)
		}
	}
	if _, err := FindFigure("f99"); err == nil || !strings.Contains(err.Error(), "f15") {
		t.Errorf("error %v, want one that lists the figures", err)
	}
}
