package backend

import (
	"testing"
	"time"

	"downbeat.dev/core/wire"
)

// TestASessionIsToldOfTheLatestPlan: the number comes with a plan's placements, and the backend reports it in later
// sessions. A backend that got no placement of a plan reports none.
func TestASessionIsToldOfTheLatestPlan(t *testing.T) {
	r := newRig(t, rigOptions{alpha: 100 * time.Microsecond, batchMax: 1})
	told := func() (all []wire.PlacementReport) {
		r.sched.mu.Lock()
		defer r.sched.mu.Unlock()
		all, r.sched.reports = r.sched.reports, nil
		return all
	}
	told()
	r.Link(true, nil)
	if got := told(); len(got) != 0 {
		t.Errorf("before any plan a session is told %+v", got)
	}

	r.Place([]wire.Placement{{Number: wire.NumberOrder(9, 1), Op: wire.Load}, {Number: 77, Op: wire.Load}})
	if !until(func() bool { r.sched.mu.Lock(); defer r.sched.mu.Unlock(); return len(r.sched.reports) == 2 }) {
		t.Fatal("the placements were not reported")
	}
	told()
	r.Link(true, nil)
	got := told()
	if len(got) != 1 || got[0].State != wire.Loaded || got[0].GPU != 0 || got[0].Model != 0 {
		t.Fatalf("a new session is told %+v", got)
	}
	if plan, ok := wire.PlanOf(got[0].Number); !ok || plan != 9 || got[0].Number == wire.NumberOrder(9, 1) {
		t.Errorf("it is told of plan %d, %v, by number %x", plan, ok, got[0].Number)
	}
}
