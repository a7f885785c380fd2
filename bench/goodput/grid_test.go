package goodput

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"downbeat.dev/bench/figure"
)

// TestGridMeetsEveryPairOfLevels: cells are different, and every two levels of two factors share one.
func TestGridMeetsEveryPairOfLevels(t *testing.T) {
	cells := gridSettings()
	if len(cells) < 60 {
		t.Fatalf("%d cells, want at least 60", len(cells))
	}

	names, pairs := map[string]bool{}, map[string]bool{}
	for _, s := range cells {
		if names[s.Name] {
			t.Errorf("%s appears twice", s.Name)
		}
		names[s.Name] = true
		factors := strings.Split(s.Name, "-")[1:]
		for i, a := range factors {
			for _, b := range factors[i+1:] {
				pairs[a+" "+b] = true
			}
		}

		if s.Capacity() <= 0 || len(s.Share) != len(s.Models) {
			t.Errorf("%s: capacity %v, %d shares of %d models", s.Name, s.Capacity(), len(s.Share), len(s.Models))
		}
	}

	// A zoo with each of 16 levels, and six pairs of factors with four levels each.
	if want := 2*16 + 6*16; len(pairs) != want {
		t.Errorf("%d pairs of levels meet, want %d", len(pairs), want)
	}
	if all, err := Select("all"); err != nil || len(all) != len(Settings()) {
		t.Errorf("all selects %d settings, %v: want the papers' %d", len(all), err, len(Settings()))
	}
	if got, err := Select("grid"); err != nil || len(got) != len(cells) {
		t.Errorf("grid selects %d settings, %v: want %d", len(got), err, len(cells))
	}
}

// TestCompareGoesOnWhereItEnded: rows that were kept are not run again, others are.
func TestCompareGoesOnWhereItEnded(t *testing.T) {
	o := small()
	o.Seeds, o.Span, o.Precision = 1, time.Second, 0.05
	settings, err := Select("table4-resnet50,table4-inceptionresnet")
	if err != nil {
		t.Fatal(err)
	}
	policies, err := Policies("downbeat,eager")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Compare(context.Background(), settings, policies, o, nil, func(Row) {})
	if err != nil {
		t.Fatal(err)
	}

	var kept bytes.Buffer
	if err := figure.WriteLines(&kept, rows[:3]...); err != nil {
		t.Fatal(err)
	}
	done, err := ReadJSON(&kept)
	if err != nil || len(done) != 3 {
		t.Fatalf("%d rows read, %v: want 3", len(done), err)
	}

	var told []string
	again, err := Compare(context.Background(), settings, policies, o, done, func(r Row) { told = append(told, r.Setting+" "+r.Policy) })
	if err != nil || !reflect.DeepEqual(told, []string{"table4-inceptionresnet eager"}) {
		t.Errorf("ran %q (%v), want what was not kept", told, err)
	}
	for i := range rows {
		if again[i].Setting != rows[i].Setting || again[i].Policy != rows[i].Policy || again[i].Goodput != rows[i].Goodput || again[i].Bound != rows[i].Bound {
			t.Errorf("row %d is %+v, was %+v", i, again[i], rows[i])
		}
	}

	o.SeedBase = 7
	if earlier := rowsOf(done, settings[0], policies, o); len(earlier) != 0 {
		t.Errorf("rows of other seeds are taken: %+v", earlier)
	}
	for _, bad := range []string{"{", `{"setting":"a"}`, "[]"} {
		if _, err := ReadJSON(strings.NewReader(bad)); err == nil || !strings.Contains(err.Error(), "row 1") {
			t.Errorf("ReadJSON(%q): error %v, want one that names the row", bad, err)
		}
	}
}

// TestRatiosNameTheBestRival: the worst cell comes first, a cell in which nobody keeps the SLOs counts as even.
func TestRatiosNameTheBestRival(t *testing.T) {
	rows := []Row{
		{Setting: "grid-a", Policy: "downbeat", Goodput: 120, Bound: 200}, {Setting: "grid-a", Policy: "eager", Goodput: 100, Bound: 200}, {Setting: "grid-a", Policy: "nexus-1", Goodput: 60, Bound: 200},
		{Setting: "grid-b", Policy: "downbeat", Goodput: 90, Bound: 200}, {Setting: "grid-b", Policy: "eager", Goodput: 50, Bound: 200}, {Setting: "grid-b", Policy: "nexus-1", Goodput: 100, Bound: 200},
		{Setting: "grid-c", Policy: "downbeat", Bound: 200}, {Setting: "grid-c", Policy: "eager", Bound: 200}, {Setting: "grid-c", Policy: "nexus-1", Bound: 200},
	}
	dir := t.TempDir()
	if err := WriteDir(dir, rows); err != nil {
		t.Fatal(err)
	}
	checkSVG(t, filepath.Join(dir, "grid.svg"))

	text, err := os.ReadFile(filepath.Join(dir, "grid.csv"))
	want := "setting,ours_rps,best_rival,rival_rps,ratio,bound_rps\ngrid-b,90.0,nexus-1,100.0,0.9000,200.0\ngrid-c,0.0,eager,0.0,1.0000,200.0\ngrid-a,120.0,eager,100.0,1.2000,200.0\n"
	if err != nil || string(text) != want {
		t.Errorf("%v, grid.csv is\n%swant\n%s", err, text, want)
	}
}

// TestFewGPUsForManyModels: where waiting loses, ours keeps a load that the best baseline cannot keep.
func TestFewGPUsForManyModels(t *testing.T) {
	for name, rate := range map[string]float64{"grid-a100-8gpus-gamma1-zipf1.2-slo1": 1400, "grid-1080ti-8gpus-gamma1-zipf0-slo2": 700} {
		s, err := One(name)
		if err != nil {
			t.Fatal(err)
		}
		o := small()
		o.Seeds, o.SeedBase, o.Span = 2, 70000, 20e9
		w, err := Prepare(s, o, rate)
		if err != nil {
			t.Fatal(err)
		}

		policies, err := Policies("downbeat,clockwork-bare")
		if err != nil {
			t.Fatal(err)
		}
		ours, _ := w.Run(policies[0], rate).BadShare()
		theirs, _ := w.Run(policies[1], rate).BadShare()
		t.Logf("%s at %v r/s: %.4f bad at worst, clockwork-bare %.4f", name, rate, ours, theirs)
		if ours > 0.01 || ours > theirs {
			t.Errorf("%s at %v r/s: %.4f of a model's requests are bad, want at most 0.01 and clockwork-bare's %.4f", name, rate, ours, theirs)
		}
	}
}
