package sched

import "testing"

// TestUsualIdleGPUsDoNotHurry: the more GPUs idle, the sooner a candidate runs before it is ripe, but at a high load only
// GPUs count beyond those that the load leaves idle in the mean.
func TestUsualIdleGPUsDoNotHurry(t *testing.T) {
	for _, c := range []struct {
		name        string
		gpus, idle  int
		load        float64
		least, most float64 // share of growth
	}{
		{"a load below tight", 64, 10, 0.84, growthBase, growthBase},
		{"a load of 0.87: each idle GPU counts", 64, 8, 0.87, 0.79, 0.81},
		{"256 GPUs, of which a load of 0.94 leaves 15 idle", 256, 15, 0.94, 0.25, 0.45},
		{"twice as many", 256, 30, 0.94, 0.8, 1},
		{"few GPUs at the same load: each idle GPU counts", 36, 3, 0.94, 0.44, 0.46},
		{"an overload: each idle GPU counts", 16, 2, 1.1, 0.44, 0.46},
		{"hardly any work is left", 16, 16, 0.99, growthMost, growthMost},
	} {
		r := NewRanker(0, Options{})
		for id := range c.gpus {
			if err := r.AddGPU(0, GPUID(id), 0); err != nil {
				t.Fatal(err)
			}
		}
		r.Advance(0)
		for id := c.idle; id < c.gpus; id++ {
			r.idle.clear(uint32(id))
		}
		r.demand = int64(c.load * 1e6 * float64(c.gpus))
		if got := r.growthMax(); got < c.least-1e-9 || got > c.most+1e-9 {
			t.Errorf("%s: an idle GPU may take a candidate that would grow by %.3f, want %.3f to %.3f", c.name, got, c.least, c.most)
		}
	}
}
