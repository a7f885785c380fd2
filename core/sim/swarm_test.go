package sim

import (
	"flag"
	"os"
	"regexp"
	"testing"

	"downbeat.dev/core/model"
)

var (
	seeds  = flag.Int("seeds", seedsSampled, "how many seeds TestSwarm runs")
	seed   = flag.Uint64("seed", 1, "the first seed of TestSwarm")
	script = flag.String("script", "", "a file with a script that TestScript runs")
)

// seedsSampled is how many seeds a plain test run takes, from 1: enough for every fault and every reason.
const seedsSampled = 120

// TestSwarm runs clusters whose sizes, loads and faults are drawn from consecutive seeds. A seed
// that fails replays with -seed=N -seeds=1; it is shrunk to a script, which replays with -run Script -script FILE.
func TestSwarm(t *testing.T) {
	sum := runSeeds(t, Draw)
	if *seed == 1 && *seeds >= seedsSampled {
		sum.checkCoverage(t, model.FloorTooHigh) // models without a family have no floors
	}
}

// runSeeds runs the seeds that the flags name, and every 16th twice.
func runSeeds(t *testing.T, draw func(seed uint64) Options) *Report {
	t.Helper()
	t.Logf("seeds %d to %d", *seed, *seed+uint64(*seeds)-1)
	var sum Report
	for n := *seed; n < *seed+uint64(*seeds); n++ {
		r, err := Run(draw(n))
		if err != nil {
			small := Shrink(draw(n), 500, func(o Options) bool { _, other := Run(o); return other != nil && checkerOf(other) == checkerOf(err) })
			_, why := Run(small)
			t.Fatalf("%v\nreplay: go test ./core/sim -run %s$ -seeds=1 -seed=%d\nas a short script, which fails with %v:\n%s", err, t.Name(), n, why, small.Script())
		}
		sum.add(r)
		if n%16 != 0 {
			continue
		}
		if again, err := Run(draw(n)); err != nil || again.Hash != r.Hash {
			t.Fatalf("C9: seed %d: the second run's trace differs (%v): %+v, then %+v", n, err, r, again)
		}
	}
	t.Logf("%+v", sum)
	return &sum
}

// TestSwarmOfFamilies is TestSwarm with families on kinds of GPUs: under every fault no answer is below the floor of its
// request (V1), and answers of the best variants, of others and above floors are seen, and floors that nobody reaches.
func TestSwarmOfFamilies(t *testing.T) {
	sum := runSeeds(t, DrawFamilies)
	if *seed != 1 || *seeds < seedsSampled {
		return
	}
	sum.checkCoverage(t, model.ReasonNone)
	if f := sum.Families; f.Best == 0 || f.Lower == 0 || f.Floored == 0 || f.TooHigh == 0 {
		t.Errorf("the seeds do not see every case: %+v", f)
	}
}

// TestSeedsThatFailed runs seeds far from those that are sampled which found a defect.
func TestSeedsThatFailed(t *testing.T) {
	for n, what := range map[uint64]string{
		5033:    "a home's next GPU was too late for all that was queued, and was granted again and again in one turn",
		502336:  "the same",
		21043:   "a batch sent after a pause was given the pause's time before it was given up",
		610911:  "a GPU was held back that alone served some model, which waited for it after its mending",
		617877:  "the same",
		640715:  "the same",
		1003105: "a backend whose profile says more than its sub-cluster is planned with was taken to be busy for longer than planned",
		671887:  "a batch held a request of a session that had ended, from a queue too long to be searched at once",
	} {
		if _, err := Run(Draw(n)); err != nil {
			t.Errorf("seed %d (%s): %v", n, what, err)
		}
	}
}

// checkerOf returns which checker objected.
func checkerOf(err error) string { return regexp.MustCompile(`[CV]\d+:`).FindString(err.Error()) }

// checkCoverage fails if some fault or some reason was never seen: then the swarm says nothing of it.
func (r *Report) checkCoverage(t *testing.T, but model.Reason) {
	for f := range FaultCount {
		if r.Faults[f] == 0 {
			t.Errorf("no seed has a %v", f)
		}
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
	r.Twins += x.Twins
	r.Cuts += x.Cuts
	r.Events += x.Events
	r.Families.Best += x.Families.Best
	r.Families.Lower += x.Families.Lower
	r.Families.Floored += x.Families.Floored
	r.Families.TooHigh += x.Families.TooHigh
	for i := range r.Faults {
		r.Faults[i] += x.Faults[i]
	}
	for i := range r.Reasons {
		r.Reasons[i] += x.Reasons[i]
		r.Told[i] += x.Told[i]
	}
}

// TestGoneSessionsAreSweptUp: a batch may hold a request of a session that has ended only where a queue was too long to be
// searched at once, and only until the engine has had its turns.
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

		of, to := f.sessions[0], b.sessions[0]
		c.check.frontendClosed(of, tc.long)
		if tc.polled {
			sch.poll()
		}
		if got := c.check.mayHold(to, of.h.Number()); got != tc.want {
			t.Errorf("%+v: a batch may hold its requests: %v", tc, got)
		}
	}
}
