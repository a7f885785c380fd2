package drift

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"downbeat.dev/bench/figure"
	"downbeat.dev/core/plan"
)

// madeRows are two periods of what systems might have come to; the second begins with a drift.
func madeRows() (rows []PeriodRow) {
	for i, policy := range []string{"none", "ours", "ekya", "adainf", "scrooge", "adainf-i", "adainf-u", "clairvoyant"} {
		for period := range 2 {
			for _, model := range []string{"vehicle", "activity"} {
				rows = append(rows, PeriodRow{Policy: policy, GPUs: 4, Period: period, Model: model, Drift: period == 1, Accuracy: 0.9 + 0.01*float64(i), Initial: 0.95 - 0.1*float64(period),
					SeenNew: 0.5, AsRetrained: 0.25 * float64(i), Finish: 1, Divergence: 0.01})
			}
		}
	}
	return rows
}

// TestFiguresOfPeriods: every figure that is drawn from rows says what the rows say, and lands in its files.
func TestFiguresOfPeriods(t *testing.T) {
	in, dir := &Inputs{Setting: DefaultSetting(), Periods: madeRows()}, t.TempDir()
	for id, want := range map[string]string{
		"f4": "Ekya 50.0 %, ours 25.0 %, no learning 0.0 %", "f5": "up to 10.0 %", "f6": "at most 1.0 %",
		"f18": "4.00 points; over ours 6.00 points", "f19": "ours 100.0 %, AdaInf 100.0 %", "f22": "+2.00 points",
	} {
		f, err := FindFigure(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Write(t.Context(), in, dir); err != nil {
			t.Fatal(err)
		}
		claims, err := figure.ReadClaims(dir)
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, c := range claims[id] {
			said += c.Ours + "\n"
		}
		if !strings.Contains(said, want) {
			t.Errorf("%s says %q, want …%s…", id, said, want)
		}
		if made, err := filepath.Glob(filepath.Join(dir, id+".*")); err != nil || len(made) != 2 {
			t.Errorf("%s: %v, %v; want a table and a picture", id, made, err)
		}
	}
}

// TestFiguresSayWhatTheyMiss: of rows that are not there how to make them.
func TestFiguresSayWhatTheyMiss(t *testing.T) {
	f, err := FindFigure("f4")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(t.Context(), &Inputs{}, t.TempDir()); err == nil || !strings.Contains(err.Error(), "downbeat bench drift -o periods") {
		t.Errorf("f4: %v, want how to make its rows", err)
	}
	if _, err := FindFigure("f17"); err == nil || !strings.Contains(err.Error(), "want one of f4, f5") {
		t.Error(err)
	}
}

// TestStructures: 3·3·9 by the exits of the largest networks and all of vehicle, 3³ by the largest networks alone, 5·5·9 by all
// variants, and a front that nothing beats.
func TestStructures(t *testing.T) {
	all, err := structuresOf("../../models")
	if err != nil {
		t.Fatal(err)
	}
	counted, ofL := len(selectStructures(all, structure.counted)), len(selectStructures(all, structure.ofL))
	if counted != structuresPublished || ofL != 27 || len(all) != 225 {
		t.Errorf("%d, %d and %d structures, want 81, 27 and 225", counted, ofL, len(all))
	}

	front := frontOf(all)
	for _, s := range all {
		for _, f := range front {
			if s.accuracy() > f.accuracy() && s.cost() <= f.cost() {
				t.Fatalf("%v beats %v", s, f)
			}
		}
	}
	least, ok := cheapest(all, 0.98, false)
	if !ok || least[1].name != "vehicle-l-exit2" {
		t.Errorf("as accurate as 0.98: %v, want the second exit", least[1].name)
	}
	if any, ok := cheapest(all, 0.98, true); !ok || any[1].name != "vehicle-m-exit1" {
		t.Errorf("of all variants %v, want vehicle-m's first exit", any[1].name)
	}
}

// TestExitsOnTheHull: of the vehicle networks the market chooses only those that some price of an operation favours. Of the exits
// these are the cheapest one and both of vehicle-m.
func TestExitsOnTheHull(t *testing.T) {
	networks, err := networksOf("vehicle", "../../models")
	if err != nil {
		t.Fatal(err)
	}
	var b plan.Bidder
	for _, n := range networks {
		b.Offers = append(b.Offers, plan.Offer{Accuracy: n.accuracy, Cost: n.cost})
	}

	var names []string
	for _, i := range b.Hull(0, nil) {
		names = append(names, networks[i].name)
	}
	if want := []string{"vehicle-s-exit1", "vehicle-s", "vehicle-m-exit1", "vehicle-m-exit2", "vehicle-m", "vehicle-l"}; len(networks) != 9 || !slices.Equal(names, want) {
		t.Errorf("of %d networks %v, want %v", len(networks), names, want)
	}
}

func TestDivergence(t *testing.T) {
	for _, c := range []struct {
		a, b []float64
		want float64
	}{{[]float64{5, 5}, []float64{50, 50}, 0}, {[]float64{4, 0}, []float64{0, 9}, 1}, {[]float64{0, 0}, []float64{1, 1}, 0.5}} {
		if got := divergenceOf(c.a, c.b); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v and %v: %v bits, want %v", c.a, c.b, got, c.want)
		}
	}
}

// TestVariants: each variant is compared with the whole method on its own ground, and only if both were run.
func TestVariants(t *testing.T) {
	var rows []PeriodRow
	for policy, x := range map[string][2]float64{"adainf": {0.9, 1}, "adainf-apart": {0.95, 1}, "adainf-s": {0.93, 0.7}, "adainf-m1": {0.8, 0.5}} {
		rows = append(rows, PeriodRow{Policy: policy, GPUs: 4, Accuracy: x[0], Finish: x[1]})
	}
	rows = append(rows, PeriodRow{Policy: "adainf-s", GPUs: 4, Period: 1, Accuracy: 0.1}) // the whole method has no such period
	d, err := drawVariants(t.Context(), &Inputs{Periods: rows})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Claims) != 2 || d.Claims[0].Ours != "-2.00 points" || d.Claims[0].Verdict != figure.Holds || d.Claims[1].Ours != "-30.00 points" || d.Claims[1].Verdict != figure.Holds {
		t.Errorf("%+v, want S alone, by its own ground", d.Claims)
	}

	if c := claimAccuracy(variants[1], -0.001); c.Verdict != figure.Differs || c.Why == "" {
		t.Errorf("%+v: a difference within chance is none", c)
	}

	// A finish rate that should fall and stays is another result, and so is one that falls and should stay.
	for _, c := range []struct {
		falls bool
		gain  float64
		want  figure.Verdict
	}{{true, 0, figure.Differs}, {false, 0.001, figure.Holds}, {false, -0.1, figure.Differs}, {true, 0.1, figure.Differs}} {
		if got := claimFinish(variant{rateFalls: c.falls}, c.gain); got.Verdict != c.want {
			t.Errorf("falls %v, %+.3f: %s, want %s", c.falls, c.gain, got.Verdict, c.want)
		}
	}
}
