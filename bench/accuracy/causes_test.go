package accuracy

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"downbeat.dev/bench/policy/scaling"
)

// TestCausesAddUp: the parts of what a second lost past its bound add up to the loss, less time never gains accuracy,
// and leaving out the worst answers never raises a drop.
func TestCausesAddUp(t *testing.T) {
	policies, err := scaling.Select("downbeat,clipper-ha")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compare(t.Context(), shortSetting(t, "bursty", 60), policies, nil)
	requireSolver(t, err)
	r := &c.Results[0]
	worst, err := c.WorstCauses(t.Context(), r, 5)
	if err != nil {
		t.Fatal(err)
	}

	if len(worst) != 5 || math.Abs(worst[0].Drop-worst[0].Bound-r.PastBound1s) > 1e-9 {
		t.Errorf("%d seconds, the first %+v, past the bound by %v", len(worst), worst, r.PastBound1s)
	}
	for _, x := range worst {
		parts := x.Idle + x.Carried + x.Batches + x.Choice
		if math.Abs(x.Drop-x.Bound-parts) > 1e-9 || x.Idle < -1e-9 || x.Batches < -1e-9 || x.Violations == 0 && x.Choice < -1e-9 {
			t.Errorf("%+v: the parts add up to %v", x, parts)
		}
	}

	other := c.Results[1].Measured
	if d := r.Measured.dropWithout(other); d > r.LargestDrop1s || other.Total().Violations() > 0 && d == r.LargestDrop1s {
		t.Errorf("a drop of %v without the worst answers, %v with them", d, r.LargestDrop1s)
	}
	var b bytes.Buffer
	if err := WriteCauses(&b, r, worst, c.Results); err != nil || !strings.Contains(b.String(), "clipper-ha violates") || strings.Count(b.String(), "\n") != 9 {
		t.Errorf("%v, wrote %s", err, &b)
	}
}
