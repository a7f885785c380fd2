package sessions

import (
	"testing"
	"time"
)

// TestAWorkerThatSharesInSpaceFinishesMore: what a model alone leaves of a GPU is what sharing in space gains, and frames beyond the limit slow each other.
func TestAWorkerThatSharesInSpaceFinishesMore(t *testing.T) {
	const ms = time.Millisecond
	half := &Application{Latency: time.Second, Qualities: []Quality{{Scale: 1}}, Modules: []Module{{Exec: 50 * ms, FanOut: 1, Use: 0.5}}}
	rate := func(how sharing) float64 {
		return highestRate(func(fps float64) bool { return sustainsShared(half, 0, fps, how) })
	}

	// A request is 100 ms of half a GPU: ten a second one by one, twenty side by side.
	if one, space := rate(inTime), rate(inSpace); one < 9.9 || one > 10.3 || space < 19.8 || space > 20.4 {
		t.Errorf("%v and %v fps, want 10 and 20", one, space)
	}
	at, _ := runShared(half, 0, 20, inSpace, offeredFor).meanAndScatter(offeredSkip)
	beyond, _ := runShared(half, 0, 30, inSpace, offeredFor).meanAndScatter(offeredSkip)
	if at < 19.5 || beyond > 0.9*at {
		t.Errorf("%v fps of 20, %v of 30; want 20, and fewer", at, beyond)
	}
}

// TestModulesOfAFrameFollowEachOther: a module waits for all that it needs.
func TestModulesOfAFrameFollowEachOther(t *testing.T) {
	const ms = time.Millisecond
	a := &Application{Qualities: []Quality{{Scale: 1}}, Modules: []Module{
		{Exec: 10 * ms, FanOut: 1, Use: 1}, {Exec: 20 * ms, FanOut: 2, Use: 1, CPU: 15 * ms, After: []int32{0}},
		{Exec: 10 * ms, FanOut: 1, Use: 1, After: []int32{0}}, {Exec: 10 * ms, FanOut: 1, Use: 1, After: []int32{1, 2}}}}
	ran := runShared(a, 0, 1, inTime, 2*time.Second)

	// 10, then 15 of the processor, in which the third module has the GPU for 10, then 40 and 10.
	if got := ran.longest.Round(10 * time.Microsecond); got != 75*ms || ran.perSecond[0] != 1 || ran.perSecond[1] != 1 {
		t.Errorf("%v, %v; want 75 ms, and a frame in each second", got, ran.perSecond)
	}
}
