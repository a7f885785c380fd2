//go:build linux

package plan

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRenew renews the prices of 1,000 bidders with five variants on three kinds, from nothing and after each change. cpu-ns/op
// is the thread's processor time of renewals alone, whatever else runs on the machine.
func BenchmarkRenew(b *testing.B) {
	first := marketChanges[0]
	first.name = "first"
	for i, c := range slices.Insert(slices.Clone(marketChanges), 0, first) {
		b.Run(c.name, func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()

			rng := rand.New(rand.NewPCG(2, 9))
			m := drawMarket(rng, 1000, 5, 3)
			full := slices.Clone(m.Capacity)
			var p Prices
			spent, worst, pivots, round := int64(0), int64(0), 0, 0
			b.ReportAllocs()
			for ; b.Loop(); round++ {
				if i == 0 {
					clear(p.Price)
				}
				before := threadTime(b)
				if err := p.Renew(m); err != nil {
					b.Fatal(err)
				}
				took := threadTime(b) - before
				if round > 0 { // the first one's memory is new
					spent, worst = spent+took, max(worst, took)
				}
				pivots += p.Pivots
				c.apply(rng, m, full, round)
			}
			b.ReportMetric(float64(spent)/float64(max(1, round-1)), "cpu-ns/op")
			b.ReportMetric(float64(worst), "worst-cpu-ns")
			b.ReportMetric(float64(pivots)/float64(round), "pivots")
		})
	}
}

func threadTime(b *testing.B) int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		b.Fatal(err)
	}
	return at.Nano()
}
