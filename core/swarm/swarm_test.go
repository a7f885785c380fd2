package swarm

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"downbeat.dev/core/model"
)

var script = flag.String("script", "", "a file with a script that TestScript runs")

// TestSwarm runs clusters whose sizes, loads and faults are drawn from consecutive seeds. A failing seed is shrunk to
// a script, which replays with -run Script -script FILE; the later seeds still run.
func TestSwarm(t *testing.T) {
	sum := runSeeds(t, Draw, Run)
	if *seed == 1 && *seeds >= seedsSampled {
		sum.checkCoverage(t, model.FloorTooHigh) // models without a family have no floors
	}
}

// TestSwarmOfFamilies is TestSwarm with families on kinds of GPUs. Under every fault no answer is below the floor of
// its request (V1). There are answers of the best variants, of others, and above floors, and floors that no variant
// reaches.
func TestSwarmOfFamilies(t *testing.T) {
	sum := runSeeds(t, DrawFamilies, Run)
	if *seed != 1 || *seeds < seedsSampled {
		return
	}
	sum.checkCoverage(t, model.ReasonNone)
	if f := sum.Families; f.Best == 0 || f.Lower == 0 || f.Floored == 0 || f.TooHigh == 0 {
		t.Errorf("the seeds do not see every case: %+v", f)
	}
}

// TestSwarmOfPlans is TestSwarm with models that move under every fault, by plans of an operator, whose leader may
// die during them, or of the schedulers themselves.
func TestSwarmOfPlans(t *testing.T) {
	sum := runSeeds(t, DrawPlans, runPlans)
	if *seed != 1 || *seeds < seedsSampled {
		return
	}
	sum.checkCoverage(t, model.FloorTooHigh)
	if m := sum.Moves; m.Plans == 0 || m.Refused == 0 || m.Kills == 0 || m.Undone == 0 || m.Anew == 0 || m.Absences == 0 || m.LeftOut == 0 || m.Epochs.Kept == 0 {
		t.Errorf("the seeds do not see every case: %+v", m)
	}
}

// runPlans is Run that also fails if a plan gives a GPU more than its memory (V3), or leaves a model without a GPU
// when all faults are over (C8).
func runPlans(o Options) (*Report, error) {
	r, err := Run(o)
	switch {
	case err != nil:
	case r.Moves.MemoryExceeded > 0:
		err = fmt.Errorf("swarm: seed %d: V3: %+v\noptions %+v", o.Seed, r.Moves, o)
	case r.Moves.Homeless > 0:
		err = fmt.Errorf("swarm: seed %d: C8: %+v\noptions %+v", o.Seed, r.Moves, o)
	}
	return r, err
}

// TestSeedsThatFailed runs seeds outside the sample that found a defect.
func TestSeedsThatFailed(t *testing.T) {
	alike := map[uint64]string{ // they failed before GPUs of one kind could differ
		5033:    "a home's next GPU was too late for all that was queued, and was granted again and again in one turn",
		502336:  "the same",
		21043:   "a batch sent after a pause was given the pause's time before it was given up",
		610911:  "a GPU was held back that alone served some model, which waited for it after its mending",
		617877:  "the same",
		640715:  "the same",
		1003105: "a backend whose profile says more than its sub-cluster is planned with was taken to be busy for longer than planned",
		671887:  "a batch held a request of a session that had ended, from a queue too long to be searched at once",
		1229312: "a copy of a request was refused and took no entry of the id window, so the request in a batch did not return when its backend was lost",
		1060697: "a GPU of no known kind was planned as quicker than it had said",
		1094611: "the same",
		1099769: "the same, in a probe when all faults were over",
		1102299: "the same",
		1235784: "the same",
	}
	unlike := map[uint64]string{
		2314064: "every request became a trial of one of three GPUs that run none, which were never judged and never held again",
		2548415: "a GPU stayed on trial, and taught nothing, where the others had become as slow",
	}
	hooked := map[uint64]string{
		1903: "a Submit came for a request of which a late copy might be queued, and the checker took the Submit's deadline to be the copy's",
		2045: "a late copy came back from a batch, and the checker took a later Submit's deadline to be the copy's",
	}

	for n, what := range alike {
		if _, err := Run(drawAlike(n)); err != nil {
			t.Errorf("seed %d (%s): %v", n, what, err)
		}
	}
	for n, what := range unlike {
		if _, err := Run(withoutHooks(Draw(n))); err != nil {
			t.Errorf("seed %d (%s): %v", n, what, err)
		}
	}
	for n, what := range hooked {
		if _, err := Run(Draw(n)); err != nil {
			t.Errorf("seed %d (%s): %v", n, what, err)
		}
	}
}

// withoutHooks returns the options of a run that failed before calls had hooks.
func withoutHooks(o Options) Options {
	o.Hooked, o.Hook, o.LateHooks = 0, 0, 0
	return o
}

// TestSeedsOfPlansThatFailed is the same for TestSwarmOfPlans.
func TestSeedsOfPlansThatFailed(t *testing.T) {
	for n, what := range map[uint64]string{
		231:   "a step of spare work was ordered a turn too late, on a GPU that had a batch by then",
		1045:  "a plan went on without a GPU whose link broke, and left a model nowhere",
		11958: "a probe was answered late by a GPU that takes more than its kind is planned with, which is no fault of a plan",
		2086:  "a GPU that changed its sub-cluster did not wait for a batch that was reported before its end",
	} {
		o := withoutHooks(DrawPlans(n))
		o.AwayAt = 0 // they failed before this option was drawn
		if _, err := runPlans(o); err != nil {
			t.Errorf("seed %d (%s): %v", n, what, err)
		}
	}
}

// checkCoverage fails if some fault or some reason never occurred, because the swarm then says nothing about it.
func (r *Report) checkCoverage(t *testing.T, but model.Reason) {
	for f := range FaultCount {
		if r.Faults[f] == 0 {
			t.Errorf("no seed has a %v", f)
		}
	}

	// Few leaders come within the deadlines of the requests that wait for one.
	const waitEnough = 300
	if r.Saved == 0 && r.Faults[Spared] >= waitEnough {
		t.Error("no request that was spared got an output in time")
	}
	for why := model.ReasonNone + 1; why < model.ReasonCount; why++ {
		if r.Told[why] == 0 && why != but {
			t.Errorf("no request ended with %v", why)
		}
	}
}

// TestScript runs the script that -script names.
func TestScript(t *testing.T) {
	if *script == "" {
		t.Skip("-script names no file")
	}
	text, err := os.ReadFile(*script)
	if err != nil {
		t.Fatal(err)
	}
	o, err := ParseScript(string(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Run(o)
	t.Logf("%+v", r)
	if err != nil {
		t.Error(err)
	}
}

func (r *Report) add(x *Report) {
	r.Calls += x.Calls
	r.Good += x.Good
	r.Late += x.Late
	r.Ended += x.Ended
	r.Local += x.Local
	r.Batches += x.Batches
	r.Strays += x.Strays
	r.Duplicates += x.Duplicates
	r.Cuts += x.Cuts
	r.Saved += x.Saved
	r.Events += x.Events
	r.Families.Best += x.Families.Best
	r.Families.Lower += x.Families.Lower
	r.Families.Floored += x.Families.Floored
	r.Families.TooHigh += x.Families.TooHigh
	r.Moves.add(&x.Moves)
	r.Spare.Steps += x.Spare.Steps
	r.Spare.Time += x.Spare.Time
	for i := range r.Faults {
		r.Faults[i] += x.Faults[i]
	}
	for i := range r.Reasons {
		r.Reasons[i] += x.Reasons[i]
		r.Told[i] += x.Told[i]
	}
}

func (m *MovesReport) add(x *MovesReport) {
	m.Plans += x.Plans
	m.Steps += x.Steps
	m.Moved += x.Moved
	m.Placements += x.Placements
	m.MemoryExceeded += x.MemoryExceeded
	m.GivenBack += x.GivenBack
	m.Absences += x.Absences
	m.LeftOut += x.LeftOut
	m.Homeless += x.Homeless
	m.Elsewhere += x.Elsewhere
	m.Kills += x.Kills
	m.Undone += x.Undone
	m.Anew += x.Anew
	m.Refused += x.Refused
	m.Epochs.Applied += x.Epochs.Applied
	m.Epochs.Kept += x.Epochs.Kept
	m.Epochs.Failed += x.Epochs.Failed
}

// TestGoneSessionsAreSweptUp shows that a batch may hold a request of an ended session only if a queue was too long
// to be searched at once, and only until the engine has had its turns.
func TestGoneSessionsAreSweptUp(t *testing.T) {
	for _, tc := range []struct{ long, polled, want bool }{
		{long: true, want: true},
		{long: true, polled: true},
		{},
	} {
		c, err := newCluster(Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		sch := c.schedulers[0]
		f, b := c.newFront(), c.backs[0]
		b.connectAll()

		of, to := f.obeyedSession(), b.openSessions()[0]
		c.check.afterFrontendClose(of, tc.long)
		if tc.polled {
			sch.pollEngine()
		}
		if got := c.check.mayHold(to, of.h.Number()); got != tc.want {
			t.Errorf("%+v: a batch may hold its requests: %v", tc, got)
		}
	}
}

// TestAMomentWithoutEndIsObjectedTo shows that a run fails if events at one time cause each other without end, which
// would stop virtual time.
func TestAMomentWithoutEndIsObjectedTo(t *testing.T) {
	c, err := newCluster(Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	var again func()
	again = func() { c.after(0, again) }
	c.after(5, again)

	c.runUntil(c.now.Add(10))
	if err := c.check.err; err == nil || checkerOf(err) != "C12" {
		t.Errorf("the objection is %v, want one of C12", err)
	}
}
