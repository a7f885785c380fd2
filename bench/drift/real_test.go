//go:build cgo && !race

package drift

import (
	"errors"
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
	row, err := Policies()[1].Run(t.Context(), s, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", row)
	if row.Policy != "ours" || row.Accuracy < 0.85 || row.Accuracy > 1 || row.FinishPct < 99.5 {
		t.Errorf("%+v", row)
	}
}
