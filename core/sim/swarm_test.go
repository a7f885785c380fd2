package sim

import (
	"flag"
	"testing"
)

var (
	seeds = flag.Int("seeds", 60, "how many seeds TestSwarm runs")
	seed  = flag.Uint64("seed", 1, "the first seed of TestSwarm")
)

// TestSwarm runs clusters whose sizes, loads and faults are drawn from consecutive seeds. A seed
// that fails replays with -seed=N -seeds=1.
func TestSwarm(t *testing.T) {
	t.Logf("seeds %d to %d", *seed, *seed+uint64(*seeds)-1)
	var sum Report
	for n := *seed; n < *seed+uint64(*seeds); n++ {
		r, err := Run(Draw(n))
		if err != nil {
			t.Fatalf("%v\nreplay: go test ./core/sim -run Swarm -seeds=1 -seed=%d", err, n)
		}
		sum.add(r)
		if n%16 != 0 {
			continue
		}
		if again, err := Run(Draw(n)); err != nil || again.Hash != r.Hash {
			t.Fatalf("C9: seed %d: the second run's trace differs (%v): %+v, then %+v", n, err, r, again)
		}
	}
	t.Logf("%+v", sum)
}

func (r *Report) add(x *Report) {
	r.Calls += x.Calls
	r.Good += x.Good
	r.Late += x.Late
	r.Ended += x.Ended
	r.Local += x.Local
	r.Batches += x.Batches
	r.Strays += x.Strays
	r.Twins += x.Twins
	r.Lost += x.Lost
	r.Doubled += x.Doubled
	r.Cuts += x.Cuts
	r.Events += x.Events
	for i := range r.Reasons {
		r.Reasons[i] += x.Reasons[i]
	}
}
