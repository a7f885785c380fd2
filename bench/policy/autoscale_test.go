package policy

import "testing"

func TestAutoscaleIsSection44(t *testing.T) {
	for _, c := range []struct {
		gpus            int
		bad, idle, most float64
		want            int
	}{{24, 0.2, 0, 0.01, 30}, {24, 0.2, 0.5, 0.01, 30}, {24, 0, 0.25, 0.01, 18}, {24, 0, 0.04, 0.01, 24}, {1, 0, 1, 0.01, 1}, {10, 1, 0, 0.01, 1000}} {
		if got := Autoscale(c.gpus, c.bad, c.idle, c.most); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
