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
		return len(run.frames.owner), run.estimateStrain()
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
		gpus, requests int
		used           float64 // 1.6 of strain for the whole slack
		told           bool
	}{
		{16, 2499, 1.24, false}, // 1.98
		{16, 2500, 1.24, true},
		{16, 2500, 1.20, false}, // 1.92
		{16, 3750, 0.93, true},  // 1.49
		{16, 3750, 0.90, false}, // 1.44
		{16, 4990, 0.62, true},  // 0.99
		{16, 4990, 0.60, false}, // 0.96
		{16, 5000, 0, true},
		{32, 4999, 1.24, false},
		{32, 5000, 1.24, true},
		{32, 10000, 0, true},
		{16, 600, 1.26, true}, // 2.02
	} {
		run := busyTrial(c.gpus, 3, c.used, 0)
		run.all, run.frames.owner = 3000, make([]owner, c.requests)
		if told := run.isTold(); told != c.told {
			t.Errorf("%d GPUs, %d requests, a strain of %.2f: told %v, want %v", c.gpus, c.requests, run.estimateStrain(), told, c.told)
		}
	}
}

// busyTrial returns a trial of some seconds whose frames use a share of their slack, and growth more in the later half of
// the counted time. Its GPUs are busy 90 % of the time, which adds nothing to the strain.
func busyTrial(gpus, seconds int, used, growth float64) *trial {
	now := Time(seconds) * 1e9
	run := &trial{w: &World{GPUs: gpus, now: now, Result: Result{Busy: Duration(now) / 10 * 9 * Duration(gpus)}}, frames: &Frames{}, all: 1}
	for second := range seconds {
		x := took{frames: 1, shares: used}
		if second > seconds/2 {
			x.shares += growth
		}
		run.took = append(run.took, x)
	}
	return run
}

// TestStrainIsSeenBeforeAFrameIsLost shows that sessions are refused whose frames use most of their slack, or more of it
// each second, although no frame is late yet. The same growth over a longer time is slower growth.
func TestStrainIsSeenBeforeAFrameIsLost(t *testing.T) {
	for _, c := range []struct {
		seconds      int
		used, growth float64
		kept         bool
	}{{5, 0.5, 0, true}, {5, 0.65, 0, false}, {30, 0.65, 0, false}, {5, 0.4, 0.1, false}, {5, 0.4, 0.02, true}, {15, 0.4, 0.1, true}, {15, 0.4, 0.3, false}} {
		run := busyTrial(4, c.seconds, c.used, c.growth)
		if kept := run.isKept(); kept != c.kept {
			t.Errorf("%v of the slack used, %v more later in %d s: kept %v with a strain of %.2f, want %v", c.used, c.growth, c.seconds, kept, run.estimateStrain(), c.kept)
		}
	}
}

// TestCPUStagesAreNoStrain shows that the time of hooks uses none of a frame's slack, however long they take.
func TestCPUStagesAreNoStrain(t *testing.T) {
	p := promiseOf(t, 5, time.Second)
	p.Graph.Steps = append(p.Graph.Steps, app.Step{Stage: &app.Stage{Name: "hook", Fixed: 900 * time.Millisecond}, List: app.Single, After: []int32{1}})
	p.Offsets = []time.Duration{950 * time.Millisecond, 920 * time.Millisecond, 0}
	run := newTrial(app.Capacity{GPUs: 4, Hop: time.Millisecond}, []app.Promise{p}, trialSpan, &trialBuffers{})
	run.strained = true
	run.run()
	if mean := meanOf(run.countedSeconds()); mean.shares > 0.2 || mean.seconds < 0.9 {
		t.Errorf("frames take %.2f s of one and use %.2f of their slack", mean.seconds, mean.shares)
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
	if run.run(); !run.kept || float64(run.frames.again)/float64(len(run.frames.owner)) < 0.3 {
		t.Errorf("kept %v, %v of the requests made again; want all frames, and a third", run.kept, float64(run.frames.again)/float64(len(run.frames.owner)))
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
