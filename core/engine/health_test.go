package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
)

// offerFor requests a model at a steady rate for a while. It returns the number of requests, and the number of them
// that got an output.
func (s *stage) offerFor(f *front, model string, first uint64, every, budget, span sched.Time) (asked, served int) {
	end := s.clock.now + span
	id := first
	for ; s.clock.now < end; id++ {
		f.ask(id, model, budget)
		s.run(s.clock.now + every)
	}
	s.run(s.clock.now + budget + 10*ms)
	for k := first; k < id; k++ {
		asked++
		if e := s.ends[k]; len(e) == 1 && e[0] == "output" {
			served++
		}
	}
	return asked, served
}

// TestFailingGPUIsHeldBack: a GPU that fails every batch at once would attract the whole load, because it is always
// free. It is held back, and the others serve what they can.
func TestFailingGPUIsHeldBack(t *testing.T) {
	for _, gpus := range []int{2, 3} {
		var log bytes.Buffer
		s := newStage(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		sick := s.mustBackend(hello("sick", 1, slope, "m"))
		sick.lose, sick.reason, sick.untold, sick.quick = func() bool { return true }, model.ExecutionFailed, true, true
		for k := range gpus - 1 {
			s.mustBackend(hello(fmt.Sprint("good", k), 1, slope, "m"))
		}
		f := s.frontend()

		// Two thirds of the load that the others can serve in batches of eight, so all of it must be served.
		every := sched.Time(slope[7]) / 8 * 3 / 2 / sched.Time(gpus-1)
		asked, served := s.offerFor(f, "m", 1, every, 60*ms, 10_000*ms)
		t.Logf("%d GPUs, one of which fails each batch: %d of %d served", gpus, served, asked)
		if served*100 < asked*98 {
			t.Errorf("%d GPUs, one of which fails each batch: %d of %d served", gpus, served, asked)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines in the log, want one:\n%s", n, log.String())
		}
		held := 0
		for _, g := range s.e.Stats().GPUs {
			if g.Held {
				held++
			}
		}
		if held != 1 {
			t.Errorf("%d GPUs are held back, want 1", held)
		}

		sick.lose, sick.quick = nil, false // repaired
		s.offerFor(f, "m", 1<<20, every, 60*ms, 21_000*ms)
		if st := s.e.Stats(); st.GPUs[0].Held || !strings.Contains(log.String(), "serves again") {
			t.Errorf("after its mending the GPU is still held back: %+v\n%s", st.GPUs[0], log.String())
		}
	}
}

// TestFailingGPUAloneInItsSubClusterIsHeldBack: if profiles distinguish two backends, each is a separate sub-cluster.
// The failing one is compared with the other, because both serve the model.
func TestFailingGPUAloneInItsSubClusterIsHeldBack(t *testing.T) {
	double := make([]time.Duration, len(slope))
	for i := range slope {
		double[i] = 2 * slope[i]
	}
	for _, c := range []struct{ sick, well []time.Duration }{{slope, double}, {double, slope}} {
		s := newStage(t, Options{})
		sick := s.mustBackend(hello("sick", 1, c.sick, "m"))
		sick.lose, sick.reason, sick.untold, sick.quick = func() bool { return true }, model.ExecutionFailed, true, true
		s.mustBackend(hello("well", 1, c.well, "m"))

		// Half of the load that the healthy one can serve in batches of eight.
		asked, served := s.offerFor(s.frontend(), "m", 1, sched.Time(c.well[7])/4, 120*ms, 5_000*ms)
		t.Logf("ℓ(8) of the sick one %v, of the other %v: %d of %d served", c.sick[7], c.well[7], served, asked)
		if asked-served > 4*2*4 { // two tries of each request, four times, before it is held back
			t.Errorf("ℓ(8) of the sick one %v, of the other %v: %d of %d served", c.sick[7], c.well[7], served, asked)
		}
	}
}

// TestFailingGPUIsOutlierAmongSlowOnes: on a busy host a batch may take longer than planned on every working GPU.
// That does not excuse the GPU whose batches fail.
func TestFailingGPUIsOutlierAmongSlowOnes(t *testing.T) {
	var r ranker
	var sick, slow health
	note := func(h *health, failed, slow bool) {
		before := h.Health
		h.Note(failed, slow)
		r.countChange(&before, &h.Health)
	}
	judged := func() sched.Verdict {
		return sick.Judge(0, sched.Peers{GPUs: 2, Working: int(r.working.Load()), Sound: r.sound})
	}

	r.beginHealth(&sick)
	r.beginHealth(&slow)
	note(&slow, false, true)
	for range 4 {
		note(&sick, true, false)
	}
	if judged() != sched.Sickened {
		t.Error("a GPU fails while another one works, and it is not held")
	}

	note(&slow, true, false)
	if judged() != sched.Unchanged {
		t.Error("all GPUs fail, and one of them is held")
	}

	r.dropHealth(&sick)
	r.dropHealth(&slow)
	if r.working.Load() != 0 || r.sound != 0 {
		t.Errorf("all GPUs have left: %d work, %d are sound", r.working.Load(), r.sound)
	}
}

// TestFailingGPUWithAModelOfItsOwnIsNotHeldBack: a GPU that alone serves some model stays in the rotation, whatever
// others do with the shared models. When it is repaired, that model is answered at once.
func TestFailingGPUWithAModelOfItsOwnIsNotHeldBack(t *testing.T) {
	s := newStage(t, Options{})
	sick := s.mustBackend(hello("sick", 1, slope, "m", "own"))
	s.mustBackend(hello("well", 1, slope, "m"))
	f := s.frontend()

	sick.lose, sick.reason, sick.untold, sick.quick = func() bool { return true }, model.ExecutionFailed, true, true
	s.offerFor(f, "m", 1, 4*ms, 120*ms, 2_000*ms)

	sick.lose, sick.quick = nil, false
	if asked, served := s.offerFor(f, "own", 1<<20, 20*ms, 60*ms, 200*ms); served != asked {
		t.Errorf("%d of %d requests of the model that only the mended GPU has were served", served, asked)
	}
}

// TestAbsenceIsNoExcuseForLaterBatches: the time during which the scheduler was stopped is added to the watchdogs of
// the batches that were in flight then, but not of batches sent later.
func TestAbsenceIsNoExcuseForLaterBatches(t *testing.T) {
	s := newStage(t, Options{Prompt: 1}) // so that the batch leaves at once
	b := s.mustBackend(hello("b", 1, slope, "m"))
	b.hang = true
	f := s.frontend()
	s.run(s.clock.now + 150*ms)

	s.clock.now += 3_000 * ms // nobody polls
	f.ask(1, "m", 20*ms)
	s.run(s.clock.now + 20*ms)
	if len(b.batches) != 1 {
		t.Fatalf("batches %v, want one", b.batches)
	}
	s.run(s.clock.now + sched.Time(limits.Engine(slope[0])) + 200*ms)
	if !b.cut {
		t.Error("the watchdog of a batch that was sent after the absence waited for as long again")
	}
}

// TestSlowGPUIsHeldBack: a GPU that takes ten times its profile leaves the rotation. If all GPUs do, the profile is
// wrong and none leaves. Batches that pass their deadlines behind a slow one and do not run change nothing.
func TestSlowGPUIsHeldBack(t *testing.T) {
	slow := make([]time.Duration, len(slope))
	for i := range slow {
		slow[i] = 10 * slope[i]
	}
	for _, c := range []struct{ all, strict bool }{{false, false}, {false, true}, {true, false}} {
		all := c.all
		s := newStage(t, Options{})
		for k := range 3 {
			b := s.mustBackend(hello("b", 1, slope, "m"))
			if b.strict = c.strict; k == 0 || all {
				b.profile = slow
			}
		}
		f := s.frontend()
		asked, served := s.offerFor(f, "m", 1, sched.Time(slope[7])/8*3/4, 60*ms, 10_000*ms)
		held := 0
		for _, g := range s.e.Stats().GPUs {
			if g.Held {
				held++
			}
		}
		t.Logf("all slow: %v: %d of %d answered, %d GPUs held back", all, served, asked, held)
		if !all && (held != 1 || served*100 < asked*98) || all && held != 0 {
			t.Errorf("all slow: %v: %d of %d answered, %d GPUs held back", all, served, asked, held)
		}
	}
}

// TestOverrunIsASubClustersOwn shows that a backend that is slower than its profile takes no budget from models of
// another sub-cluster.
func TestOverrunIsASubClustersOwn(t *testing.T) {
	s := newStage(t, Options{})
	h := hello("healthy", 1, []time.Duration{40e6}, "a")
	h.SubCluster = "A"
	s.mustBackend(h)
	h = hello("other", 1, []time.Duration{15e6}, "b")
	h.SubCluster = "B"
	s.mustBackend(h).profile = []time.Duration{30e6}
	f := s.frontend()
	s.offerFor(f, "b", 1000, 60*ms, 50*ms, 36_000*ms)

	asked, served := s.offerFor(f, "a", 1, 100*ms, 50*ms, 10_000*ms) // ℓ(1) is 40 of 50 ms, and the GPU is idle
	if served != asked {
		t.Errorf("%d of %d requests of the healthy sub-cluster were served", served, asked)
	}
}
