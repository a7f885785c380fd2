package sched

import (
	"math/rand/v2"
	"testing"
	"time"

	"downbeat.dev/core/profile"
)

// TestAPlanIsTheBestOfAllBatches compares the tables that plans are read from with a search of all batches, for drawn
// profiles, queue limits, rates and budgets.
func TestAPlanIsTheBestOfAllBatches(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 7))
	for range 300 {
		table := make([]time.Duration, 1+rng.IntN(40))
		last := time.Duration(1)
		for b := range table {
			// Some sizes take no longer than the one before, as on real GPUs.
			if rng.IntN(3) > 0 {
				last += time.Duration(rng.Int64N(4e6))
			}
			table[b] = last
		}
		prof, err := profile.New(table)
		if err != nil {
			t.Fatal(err)
		}
		x := NewPartition(Options{Ctrl: 20_000, Data: 3_000}).tablesOf(prof)
		most := 1 + rng.IntN(len(table))
		r := resident{cheapestUpTo: x.cheapestUpTo, execution: execution{lead: x.lead, exec: x.exec, max: int32(most)}}

		checkTrimmed(t, &r)
		for range 20 {
			perNS, budget := rng.ExpFloat64()/1e6, Duration(rng.Int64N(100_000_000))
			r.planBatch(perNS, budget)

			leastWithin := func(share float64) (cost float64) {
				best := 1
				for b := 2; b <= most && float64(r.lead[b])+float64(b-1)/perNS <= share*float64(budget); b++ {
					if float64(r.exec[b])/float64(b) < float64(r.exec[best])/float64(best) {
						best = b
					}
				}
				return float64(r.exec[best]) / float64(best) / 1e9
			}
			cost, grown, small := leastWithin(planBudget), leastWithin(growBudget), 0
			for small+1 < most && float64(r.exec[small+1]) > gainLeast*1e9*grown*float64(small+1) {
				small++
			}
			if r.cost != cost || r.small() != small {
				t.Fatalf("%v up to %d: cost %v, want %v; small %d, want %d", table, most, r.cost, cost, r.small(), small)
			}
			target := 1
			for target < most && float64(target)/perNS+float64(r.lead[target+1]) <= float64(budget) {
				target++
			}
			if r.target = r.targetAt(perNS, budget); r.target != target {
				t.Fatalf("%v up to %d: target %d, want %d", table, most, r.target, target)
			}
		}
	}
}

// checkTrimmed compares the sizes that a resident's batches are trimmed to with a search.
func checkTrimmed(t *testing.T, r *resident) {
	if r.trimmed(0) != 0 {
		t.Fatal("a batch of none is trimmed to some")
	}
	for b := 1; b <= int(r.max); b++ {
		perRequest := func(n int) float64 { return float64(r.exec[n]) / float64(n) }
		least := 1
		for n := 2; n <= b; n++ {
			if perRequest(n) < perRequest(least) {
				least = n
			}
		}

		// A batch that costs hardly more stays.
		want := b
		if perRequest(b) > gainLeast*perRequest(least) {
			want = least
		}
		if got := r.trimmed(b); got != want {
			t.Fatalf("%v: a batch of %d is trimmed to %d, want %d", r.exec, b, got, want)
		}
	}
}
