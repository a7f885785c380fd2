//go:build cgo && !race

package drift

import (
	"errors"
	"strings"
	"testing"

	"downbeat.dev/backend/ort"
)

// TestAShortRun: two periods, with real training where something drifts.
func TestAShortRun(t *testing.T) {
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}
	s := DefaultSetting()
	s.Periods, s.Models, s.Seed, s.firstSteps = 2, "../../models", 3, 20
	var account string
	row, err := Policies()[1].Run(t.Context(), s, func(line string) { account = line })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v\n%s", row, account)

	// The serving weights have answered all samples as requests, so the alarm costs nothing.
	if !strings.Contains(account, "training steps") || strings.Contains(account, " 0 training") || !strings.Contains(account, "alarm 0.0") {
		t.Error(account)
	}
	if row.Policy != "ours" || row.Accuracy < 0.85 || row.Accuracy > 1 || row.FinishPct < 99.5 {
		t.Errorf("%+v", row)
	}
}

// TestBoundsAreNoRivals: they are run by name alone; the one that trains nothing serves the first weights, and is as good as retrained nowhere.
func TestBoundsAreNoRivals(t *testing.T) {
	all, err := Select("all")
	if err != nil || len(all) != len(Policies())-3-len(variantPolicies()) {
		t.Fatalf("%d policies, %v; want all but those for comparison", len(all), err)
	}
	if testing.Short() {
		t.Skip("trains for real")
	}
	if _, err := ort.Open(""); errors.Is(err, ort.ErrMissing) {
		t.Skip(err)
	}

	chosen, err := Select("clairvoyant,instant,watch")
	if err != nil {
		t.Fatal(err)
	}
	s := DefaultSetting()
	s.Periods, s.Models, s.Seed, s.firstSteps = 2, "../../models", 3, 20 // activity drifts in the second period
	for _, p := range chosen {
		row, err := p.Run(t.Context(), s, nil)
		if err != nil {
			t.Fatal(err)
		}

		// What serves from the first second of a period on is not new in it.
		if (row.AsRetrained > 0) != (p.Name != "watch") || (row.SeenNewPct > 0) != (p.Name == "instant") {
			t.Errorf("%+v", row)
		}
		if p.Name == "watch" && row.DetectedPct != 100 {
			t.Errorf("%+v: the drift was not detected", row)
		}
	}
}
