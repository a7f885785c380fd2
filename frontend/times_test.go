package frontend

import (
	"math"
	"testing"
	"time"

	"downbeat.dev/core/limits"
)

// TestBudgetsOfCenturiesAreBounded: gRPC's longest timeout in whole hours ends just before the clock does. A call with it
// must have a moment to end at whenever it begins, or else its place in the wheel does not exist.
func TestBudgetsOfCenturiesAreBounded(t *testing.T) {
	c := &Client{o: Options{Grace: limits.AnswerGrace}}
	c.pending.init(16)
	longest := 2_562_047 * time.Hour // the largest that "grpc-timeout" takes as it is
	edge := math.MaxInt64 - int64(longest)
	for _, now := range []int64{0, edge - int64(c.o.Grace), edge - int64(c.o.Grace) + 1, edge, edge + 1, edge + int64(c.o.Grace)} {
		p, _ := c.pending.takeSlot(0)
		c.setTimes(p, now, longest)
		if p.expire < p.deadline || p.deadline < p.target || p.target < now {
			t.Errorf("begun at %v: target %d, deadline %d, end %d", time.Duration(now), p.target, p.deadline, p.expire)
			continue
		}
		c.pending.armCall(p, 1)
		if c.pending.claimCall(p.id()) == nil {
			t.Errorf("begun at %v: the call is not found", time.Duration(now))
		}
		c.pending.releaseSlot(p)
	}
}
