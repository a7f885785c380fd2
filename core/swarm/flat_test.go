package swarm

import "testing"

// TestFlatTop shows that under an increasing load goodput does not fall below 0.9 of the best (fig. 10 of Symphony),
// whatever the sizes.
func TestFlatTop(t *testing.T) {
	for n := *seed; n < *seed+uint64(max(4, *seeds/50)); n++ {
		o := Draw(n).Calm()
		o.Backends, o.GPUs, o.Models, o.Burst = min(o.Backends, 4), min(o.GPUs, 2), min(o.Models, 20), min(o.Burst, 4)
		o.Span = 1e9
		peak, goodput := 0.0, []float64{}
		for _, o.Load = range []float64{0.5, 1, 2, 4} {
			r, err := Run(o)
			if err != nil {
				t.Fatal(err)
			}
			goodput = append(goodput, r.Goodput())
			if r.Goodput() < 0.9*peak {
				t.Errorf("seed %d: goodput %.2f GPUs at loads of 0.5, 1, 2, 4: %+v", n, goodput, o)
			}
			peak = max(peak, r.Goodput())
		}
		t.Logf("seed %d: goodput %.2f GPUs at loads of 0.5, 1, 2, 4", n, goodput)
	}
}

// TestPartitionsAgree shows that the distribution of models over locks and loops changes no invariant and almost no
// answer.
func TestPartitionsAgree(t *testing.T) {
	for n := *seed; n < *seed+uint64(max(10, *seeds/20)); n++ {
		o := Draw(n).Calm()
		var first *Report
		for _, parts := range []int{1, 3, 16} {
			o.Partitions, o.Cores = parts, (parts+3)/4
			r, err := Run(o)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = r
				continue
			}
			if d := max(r.Good, first.Good) - min(r.Good, first.Good); r.Calls != first.Calls || d > 5+r.Calls/20 {
				t.Errorf("seed %d: %d of %d calls answered in time with 1 partition, %d of %d with %d", n, first.Good, first.Calls, r.Good, r.Calls, parts)
			}
		}
	}
}
