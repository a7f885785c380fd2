//go:build linux

package plan

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRenew renews the prices of 1,000 bidders with five variants on three kinds, from nothing and after each
// change. cpu-ns is the thread's processor time of the renewals alone, whatever else runs on the machine.
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
			var times []int64
			pivots, round := 0, 0
			b.ReportAllocs()
			for ; b.Loop(); round++ {
				if i == 0 {
					clear(p.Price)
				}
				before := threadTime(b)
				if err := p.Renew(m); err != nil {
					b.Fatal(err)
				}
				if round > 0 { // the first round allocates
					times = append(times, threadTime(b)-before)
				}
				pivots += p.Pivots
				c.apply(rng, m, full, round)
			}
			reportTimes(b, times)
			b.ReportMetric(float64(pivots)/float64(round), "pivots")
		})
	}
}

// reportTimes reports the mean, the 99th percentile and the longest time.
func reportTimes(b *testing.B, times []int64) {
	if len(times) == 0 {
		return
	}
	slices.Sort(times)

	sum := int64(0)
	for _, x := range times {
		sum += x
	}
	b.ReportMetric(float64(sum)/float64(len(times)), "cpu-ns/op")
	b.ReportMetric(float64(times[len(times)*99/100]), "p99-cpu-ns")
	b.ReportMetric(float64(times[len(times)-1]), "worst-cpu-ns")
}

func threadTime(b *testing.B) int64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		b.Fatal(err)
	}
	return at.Nano()
}
