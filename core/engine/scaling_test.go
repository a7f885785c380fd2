package engine

import (
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
)

// TestSizesAreAdvisedByTheScaler shows that the engine's advice for a sub-cluster equals that of a Scaler that sees
// the same load: more GPUs than there are while the demand exceeds them, kept for half a minute, and then the GPUs
// needed.
func TestSizesAreAdvisedByTheScaler(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("a", 2, slope, "m"))
	f := s.frontend()
	beside := plan.NewScaler()

	// Two GPUs with batches of 8 in 12 ms serve 1,333 requests/s. For ten seconds the load is twice that.
	wanted := make([]int, 80)
	var last, ended, bad uint64
	for second := range wanted {
		switch {
		case second < 10:
			last = s.steadily(f, "m", last, 4*ms, 1000*ms)
		case second < 20:
			last = s.steadily(f, "m", last, 2*ms/5, 1000*ms)
		default:
			s.run(s.clock.now + 1000*ms)
		}

		x := s.e.Stats()
		c := s.e.partition(0).models[x.Models[0].ID]
		badNow := c.outcomes[model.DeadlineCannotBeMet] + c.outcomes[model.QueueFull]
		endedNow := c.sent + badNow
		want, err := beside.Observe(time.Duration(s.clock.now), plan.Load{Demand: x.Load[0].Demand, Requests: int(endedNow - ended), Bad: int(badNow - bad), GPUs: 2, Ordered: 2})

		// Without requests the demand falls continuously, so two readings at different times differ.
		if err != nil || second < 20 && x.Load[0].Advice != want {
			t.Errorf("second %d: %+v advised, a Scaler says %+v (%v)", second, x.Load[0].Advice, want, err)
		}
		wanted[second], ended, bad = x.Load[0].Advice.GPUs, endedNow, badNow
	}

	if bad == 0 {
		t.Error("no request was bad: the load is too light to test anything")
	}
	if wanted[9] != 2 || wanted[19] < 4 || wanted[45] != wanted[19] || wanted[79] != 1 {
		t.Errorf("GPUs advised by second %v: want 2, then at least 4 for half a minute, then 1", wanted)
	}
}

// TestBadRequestsAskForGPUs: if requests go bad at low demand, a profile may be wrong, and more GPUs are advised.
// Callers who allow less time than a batch takes do not have them doubled again and again.
func TestBadRequestsAskForGPUs(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("a", 2, slope, "m"))
	s.mustBackend(hello("b", 2, slope, "other"))
	f := s.frontend()
	for id := uint64(1); id <= 2000; id += 2 {
		f.ask(id, "m", 50*ms)
		f.ask(id+1, "m", 2*ms) // one batch takes 5 ms
		s.run(s.clock.now + 10*ms)
	}

	x := s.e.Stats().Load
	if a := x[0].Advice; a.GPUs != 4 || a.Reason != plan.ScaleBad || a.Needed != 1 {
		t.Errorf("%+v advised: want twice the GPUs", a)
	}
	if a := x[1].Advice; a.GPUs != 2 || a.Reason != plan.ScaleHold {
		t.Errorf("%+v advised where nothing is bad: want as many as there are", a)
	}
}

// TestPartsOfAPoolAreToldAsItsParts: backends of one name that serve different models form two sub-clusters, each
// with its own advice. The owner of the machines finds both by the name.
func TestPartsOfAPoolAreToldAsItsParts(t *testing.T) {
	s := newStage(t, Options{})
	for k, m := range []string{"m", "other"} {
		h := hello(m, 1+k, slope, m)
		h.SubCluster = "h200"
		s.mustBackend(h)
	}
	s.run(s.clock.now + 1500*ms)

	x := s.e.Stats().Load
	if len(x) != 2 || x[0].SubCluster == x[1].SubCluster || x[0].Pool != "h200" || x[1].Pool != "h200" || x[0].Advice.GPUs+x[1].Advice.GPUs != 3 {
		t.Errorf("%+v: want two parts of h200, with 1 and 2 GPUs advised", x)
	}
}
