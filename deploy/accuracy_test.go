package deploy

import (
	"maps"
	"strings"
	"testing"
)

func TestFloorsByFamily(t *testing.T) {
	got, err := Accuracy{Floors: "vehicle=0.9, activity=1"}.ByFamily()
	if want := (map[string]float64{"vehicle": 0.9, "activity": 1}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, bad := range []string{"vehicle", "vehicle=", "=0.5", "vehicle=1.5", "vehicle=NaN", "vehicle=-0.1", "v=0.5,v=0.6"} {
		c := Default()
		c.Accuracy.Floors = bad
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), "accuracy.floors") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
