package sched

import (
	"testing"

	vocabulary "downbeat.dev/core/model"
)

// TestWhatBecomesOfAFailure follows a request through one backend's answer: its flags, whether it is retried, what it
// keeps, and the reason that its frontend gets if no other backend serves it in time.
func TestWhatBecomesOfAFailure(t *testing.T) {
	for _, c := range []struct {
		why            vocabulary.Reason
		untold         bool
		before, noted  uint8
		blamed, again  bool
		kept           uint8
		told           vocabulary.Reason
		endedByBackend bool
	}{
		{why: vocabulary.BackendLost, noted: GaveBack, again: true, kept: WasLost, told: vocabulary.BackendLost},
		{why: vocabulary.BackendLost, before: WasLost, noted: GaveBack, kept: WasLost, told: vocabulary.BackendLost},
		{why: vocabulary.NoBackend, noted: GaveBack | Unrun, again: true, told: vocabulary.DeadlineCannotBeMet},
		{why: vocabulary.NoBackend, before: WasLost, noted: GaveBack | Unrun, again: true, kept: WasLost, told: vocabulary.BackendLost},
		{why: vocabulary.ExecutionFailed, blamed: true, endedByBackend: true},
		{why: vocabulary.ExecutionFailed, untold: true, noted: GaveBack | Broke, blamed: true, again: true, kept: WasLost | Broke, told: vocabulary.ExecutionFailed},
		{why: vocabulary.InputUnavailable, blamed: true, endedByBackend: true},
		{why: vocabulary.InputUnavailable, untold: true, noted: GaveBack | Unread, again: true, kept: WasLost | Unread, told: vocabulary.InputUnavailable},
		{why: vocabulary.DeadlineCannotBeMet, endedByBackend: true},
	} {
		noted := AfterFailure(c.why, c.untold)
		if noted != c.noted || c.endedByBackend != (noted == 0) || BlamesGPU(c.why, c.untold) != c.blamed {
			t.Errorf("%v, untold %v: noted %b, blamed %v, want %b, %v", c.why, c.untold, noted, BlamesGPU(c.why, c.untold), c.noted, c.blamed)
		}
		if c.endedByBackend {
			continue
		}

		past := c.before | noted
		if MayTryAgain(past) != c.again {
			t.Errorf("%v after %b: tried again %v, want %v", c.why, c.before, MayTryAgain(past), c.again)
		}
		if kept := PastOf(past); kept != c.kept || ReasonTold(kept, vocabulary.DeadlineCannotBeMet) != c.told {
			t.Errorf("%v after %b: kept %b and told %v, want %b and %v", c.why, c.before, kept, ReasonTold(kept, vocabulary.DeadlineCannotBeMet), c.kept, c.told)
		}
	}

	if past := AfterFailure(vocabulary.DeadlineCannotBeMet, true); past&Told == 0 {
		t.Error("a request that its backend found too late is given to others, who would do no better")
	}
	if why := ReasonTold(WasLost|Broke, vocabulary.Canceled); why != vocabulary.Canceled {
		t.Errorf("a request that its client canceled ends with %v", why)
	}
}

// TestGroupsToAvoid: a request avoids the GPUs that could not serve it, as long as others can.
func TestGroupsToAvoid(t *testing.T) {
	const failed, unread, other = Groups(1), Groups(2), Groups(4)
	for _, c := range []struct {
		name   string
		past   uint8
		unread Groups
		served Groups // groups of the backends that serve the model
		want   Groups
	}{
		{"it failed, another serves", GaveBack | Broke, 0, failed | other, failed},
		{"it failed, none other serves", GaveBack | Broke, 0, failed, 0},
		{"its backend was lost", GaveBack, 0, failed | other, 0},
		{"it was not given back", Broke, 0, failed | other, 0},
		{"two could not read, a third can", GaveBack | Unread, unread, failed | unread | other, failed | unread},
		{"two could not read, there is no third", GaveBack | Unread, unread, failed | unread, failed},
		{"it failed where others could not read", GaveBack | Broke, unread, failed | unread | other, failed},
	} {
		served := func(without Groups) bool { return c.served&^without != 0 }
		if got := GroupsToAvoid(c.past, failed, c.unread, served); got != c.want {
			t.Errorf("%s: avoids %b, want %b", c.name, got, c.want)
		}
	}
}

// TestLeastUsedGroup: backends spread over the groups, the first free one first.
func TestLeastUsedGroup(t *testing.T) {
	var used []Groups
	for n := range 2 * GroupsMax {
		g := LeastUsedGroup(used)
		if g != GroupOf(uint32(n)) {
			t.Fatalf("backend %d is of group %b", n, g)
		}
		used = append(used, g)
	}
}
