package sim

import (
	"runtime"
	"testing"
	"time"

	"downbeat.dev/core/app"
	"downbeat.dev/core/profile"
)

// promiseOf returns a session of two models in sequence, with 20 ms each.
func promiseOf(t *testing.T, rate float64, latency time.Duration) app.Promise {
	p, err := profile.Linear(5*time.Millisecond, 15*time.Millisecond, 16)
	if err != nil {
		t.Fatal(err)
	}
	g := &app.Graph{Application: &app.Application{Name: "two", Latency: latency}, Steps: []app.Step{
		{Stage: &app.Stage{Name: "a", Model: "a"}, List: app.Single},
		{Stage: &app.Stage{Name: "b", Model: "b"}, List: app.Single, After: []int32{0}}}}
	return app.Promise{Graph: g, Rate: rate, Latency: latency, Profiles: func(int) *profile.Profile { return p }}
}

// TestTrialPassesWhatFits: sessions are admitted until the GPU is full, and the admitted ones are served for a
// minute.
func TestTrialPassesWhatFits(t *testing.T) {
	c := app.Capacity{GPUs: 1, Hop: time.Millisecond}
	var open []app.Promise
	var refused error
	for len(open) < 100 && refused == nil {
		p := promiseOf(t, 5, 300*time.Millisecond)
		p.Phase = time.Duration(len(open)) * 37 * time.Millisecond % p.Period()
		p, a, err := app.Admit(c, open, p, Trial)
		if err != nil {
			t.Fatal(err)
		}
		if refused = a.Refusal; refused == nil {
			open = append(open, p)
		} else if a.OfferRate >= 5 || a.OfferLatency > 0 && a.OfferLatency < 300*time.Millisecond {
			t.Errorf("offers %v frames/s and %v, want less than was asked for", a.OfferRate, a.OfferLatency)
		}
	}

	// Without batching a session takes a fifth of the GPU; with unbounded batches a twentieth.
	if refused == nil || len(open) < 4 || len(open) > 20 {
		t.Errorf("%d sessions, then %v; want 4 to 20", len(open), refused)
	}
	if !KeepsPromises(c, open, time.Minute) {
		t.Errorf("%d sessions were let in, and do not fit", len(open))
	}
	if KeepsPromises(c, append(append(open[:len(open):len(open)], open...), open...), time.Minute) {
		t.Errorf("three times %d sessions fit", len(open))
	}
	if Trial(app.Capacity{}, open) {
		t.Error("sessions pass without a GPU")
	}
}

// TestTrialSeesABacklogGrow: within some seconds a backlog of less than a latency costs no frame, so sessions of long
// latencies would be admitted beyond the GPU's capacity.
func TestTrialSeesABacklogGrow(t *testing.T) {
	roomy, c := app.Capacity{GPUs: 1000, Hop: time.Millisecond}, app.Capacity{GPUs: 2, Hop: time.Millisecond}
	var open []app.Promise
	passed := 0
	for n := range 60 {
		p := promiseOf(t, 5, 20*time.Second)
		p.Phase = time.Duration(n) * 37 * time.Millisecond % p.Period()
		p, _, err := app.Admit(roomy, open, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if open = append(open, p); !Trial(c, open) {
			break
		}
		passed++
	}

	if passed < 30 || !KeepsPromises(c, open[:passed], 10*time.Minute) {
		t.Errorf("%d sessions pass, and are not kept for ten minutes", passed)
	}
}

// TestTrialIsBounded shows that a trial without a clear result ends after as many requests as a decision has time
// for, and leaves nothing to the next trial, which reuses its memory.
func TestTrialIsBounded(t *testing.T) {
	c := app.Capacity{GPUs: 2, Hop: time.Millisecond}
	buffers := takeBuffers()
	try := func(sessions int) (requests int, strain float64) {
		var all []app.Promise
		for n := range sessions {
			p := promiseOf(t, 5, 20*time.Second)
			p.Phase, p.Offsets = time.Duration(n)*37*time.Millisecond%p.Period(), make([]time.Duration, 2)
			all = append(all, p)
		}
		run := newTrial(c, all, trialMost, buffers)
		defer run.returnBuffers(buffers)
		run.strained = true
		run.run()
		return len(run.frames.owner), run.strain()
	}

	requests, strain := try(40)
	if requests < requestsMost || requests > requestsMost+100 {
		t.Errorf("%d requests, want %d: within twice the latency nobody can tell", requests, requestsMost)
	}
	if few, _ := try(3); few > requestsMost/2 {
		t.Errorf("%d requests of three sessions that fit", few)
	}
	if again, s := try(40); again != requests || s != strain {
		t.Errorf("the same trial once more: %d requests and a strain of %v, before %d and %v", again, s, requests, strain)
	}
}

// TestARefusalIsToldTheSoonerTheClearerItIs: the strain of a trial is compared with a limit that falls with the
// number of requests, in proportion to the number of GPUs on large clusters.
func TestARefusalIsToldTheSoonerTheClearerItIs(t *testing.T) {
	for _, c := range []struct {
		gpus, requests, bad int // of 3,000 frames; 0.57·√bad·√(1/3) of strain
		told                bool
	}{
		{16, 3999, 16, false}, // 1.32
		{16, 4000, 16, true},
		{16, 4000, 14, false}, // 1.23
		{16, 6000, 14, true},
		{16, 6000, 12, false}, // 1.14
		{16, 7500, 12, true},
		{16, 7500, 9, false}, // 0.99
		{16, 8000, 0, true},
		{32, 7999, 16, false},
		{32, 8000, 16, true},
		{32, 16000, 0, true},
	} {
		run := &trial{w: &World{GPUs: c.gpus, now: 3e9}, frames: &Frames{owner: make([]owner, c.requests)}, all: 3000, bad: c.bad,
			lost: []int{c.bad}, ended: []int{100 * c.bad}} // no session exceeds its share
		if told := run.isTold(); told != c.told {
			t.Errorf("%d GPUs, %d requests, a strain of %.2f: told %v, want %v", c.gpus, c.requests, run.strain(), told, c.told)
		}
	}
}

// TestGrowthIsPerTime shows that in a short trial, such as one of many sessions, a backlog that grows at the same
// rate counts as less growth.
func TestGrowthIsPerTime(t *testing.T) {
	for _, c := range []struct {
		seconds int
		growth  float64
		kept    bool
	}{{5, 0.013, false}, {5, 0.011, true}, {8, 0.022, false}, {8, 0.020, true}, {11, 0.029, true}, {30, 0.029, true}, {30, 0.031, false}} {
		run := &trial{w: &World{GPUs: 1, now: Time(c.seconds) * 1e9}, frames: &Frames{}, all: 1}

		// The frames of the second half take that much more of their latency than the earlier ones.
		counted := c.seconds - 1
		for second := range c.seconds {
			took := took{frames: 1, shares: 0.3}
			if second >= 1+counted/2 {
				took.shares += c.growth
			}
			run.took = append(run.took, took)
		}
		if kept := run.isKept(); kept != c.kept {
			t.Errorf("growth of %v in %d s: kept %v, want %v", c.growth, c.seconds, kept, c.kept)
		}
	}
}

// TestTrialsKeepTheirMemory: sessions open rarely, and the collector runs in between. It must not make every decision
// begin with page faults.
func TestTrialsKeepTheirMemory(t *testing.T) {
	c := app.Capacity{GPUs: 2, Hop: time.Millisecond}
	var all []app.Promise
	for n := range 40 {
		p := promiseOf(t, 5, 20*time.Second)
		p.Phase, p.Offsets = time.Duration(n)*37*time.Millisecond%p.Period(), make([]time.Duration, 2)
		all = append(all, p)
	}

	allocated := func() uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Trial(c, all)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	first := allocated()

	// The contents of a sync.Pool survive one collection but not two.
	runtime.GC()
	runtime.GC()
	if again := allocated(); again > 1<<20 {
		t.Errorf("a trial after a collection allocates %d bytes, the one before it %d; want at most a MiB", again, first)
	} else {
		t.Logf("%d bytes, then %d", first, again)
	}
}

// TestDroppedRequestsAreMadeAgain shows that a step that missed its own deadline gets the time that the frame can
// spare.
func TestDroppedRequestsAreMadeAgain(t *testing.T) {
	c := app.Capacity{GPUs: 1, Hop: time.Millisecond}
	p := promiseOf(t, 5, 300*time.Millisecond)
	p.Offsets = []time.Duration{299 * time.Millisecond, 100 * time.Millisecond} // no GPU answers within 1 ms
	run := newTrial(c, []app.Promise{p}, trialSpan, &trialBuffers{})
	if run.run(); !run.kept || run.againShare() < 0.3 {
		t.Errorf("kept %v, %v of the requests made again; want all frames, and a third", run.kept, run.againShare())
	}
}

// TestKilledRequestsAreAskedForElsewhere shows that another GPU answers the requests of a killed one if their frame
// has time left; otherwise the frame is lost.
func TestKilledRequestsAreAskedForElsewhere(t *testing.T) {
	c := app.Capacity{GPUs: 2, Hop: time.Millisecond}
	for latency, lost := range map[time.Duration]int{150 * time.Millisecond: 1, time.Second: 0} {
		p, a, err := app.Admit(c, nil, promiseOf(t, 5, latency), nil)
		if err != nil || !a.Admitted {
			t.Fatal(err, a.Refusal)
		}

		// Whenever and wherever a request runs, some of these kills hit it.
		sum := SessionResult{}
		for gpu := range int32(2) {
			for at := Time(5e6); at < Time(150e6); at += Time(10e6) {
				loss := Loss{At: Time(time.Second) + at, GPU: gpu, Away: Duration(time.Hour), Kill: true}
				k := RunPromises(c, []app.Promise{p}, []time.Duration{5 * time.Second}, []Loss{loss})[0]
				sum.Frames, sum.InTime = sum.Frames+k.Frames, sum.InTime+k.InTime
				if k.Frames != 25 {
					t.Errorf("%d frames ended, want 25", k.Frames)
				}
			}
		}
		if got := sum.Frames - sum.InTime; got < lost || got > 30*lost {
			t.Errorf("latency %v: %d of %d frames lost over thirty kills, want %d to %d", latency, got, sum.Frames, lost, 30*lost)
		}
	}
}
