//go:build linux

package downbeat

import (
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/backend/learn"
)

// TestValuesShareSpareTime: what a second of GPU time is worth to a backend's works reaches the scheduler, and it orders
// their steps by that: three in four at least are of the work that is worth a hundred times as much. A new value of the one changes the
// weight of the other.
func TestValuesShareSpareTime(t *testing.T) {
	const spareStep = 5 * time.Millisecond // none takes as long
	c := emulated(t, Default().Roles)
	c.Emulate = 1
	s := start(t, c)
	var ran [2]atomic.Int64
	step := func(i int) func(time.Duration) func() {
		return func(time.Duration) func() { ran[i].Add(1); return nil }
	}
	learn.ShareSpareTime(s.Backend().Backend)
	little := s.Backend().NewSpareWork("little", step(0))
	much := s.Backend().NewSpareWork("much", step(1))
	weights := func() (all [2]float64) {
		x, err := s.engine.Explain()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range x.Spare {
			switch w.Name {
			case "little":
				all[0] = w.Weight
			case "much":
				all[1] = w.Weight
			}
		}
		return all
	}

	little.Offer(spareStep, 10)
	waitFor(t, func() bool { return weights() == [2]float64{1, 0} })
	much.Offer(spareStep, 1000)
	waitFor(t, func() bool { return weights() == [2]float64{0.25, 1} })

	// A step that begins late on a busy host suspends its work, and the other one runs meanwhile. So the works are offered
	// again, as learners do, until the shares are made up for. With equal weights they never are.
	before := [2]int64{ran[0].Load(), ran[1].Load()}
	waitFor(t, func() bool {
		little.Offer(spareStep, 10)
		much.Offer(spareStep, 1000)
		n, m := ran[0].Load()-before[0], ran[1].Load()-before[1]
		return n > 5 && m >= 3*n
	})

	// A drift of the other model has made it worth more: both weights change.
	little.Offer(spareStep, 2000)
	waitFor(t, func() bool { return weights() == [2]float64{1, 0.5} })
	little.Withdraw()
	waitFor(t, func() bool { return weights() == [2]float64{0, 1} })
}
