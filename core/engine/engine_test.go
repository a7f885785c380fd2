package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestServedModelsAreTold shows that a frontend learns how to request a model, and when nobody serves it any more.
// testdata/scripts shows how requests end.
func TestServedModelsAreTold(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(hello("b", 1, slope, "m"))
	f := s.frontend()
	if !f.models["m"].Ready || f.models["m"].BatchMax != 8 || f.models["m"].SLO != 50e6 {
		t.Fatalf("catalogue %+v", f.models)
	}

	f.ask(1, "m", 50*ms)
	s.run(100 * ms)
	if m := s.e.Stats().Models[0]; m.Sizes[1] != 1 || m.Ran[1].Batches != 1 || m.Ran[1].Exec <= 0 {
		t.Errorf("a batch of one is counted as %+v", m)
	}
	b.Close()
	if f.models["m"].Ready {
		t.Error("a model without a backend is ready")
	}
	if b.Done([]wire.Done{{Batch: 1}}) {
		t.Error("a closed session takes reports")
	}
}

// TestFrontendNumbers shows that backends forget a frontend that has left, and that its slot is reused but its number
// is not.
func TestFrontendNumbers(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(hello("b", 1, slope, "m"))
	f, g := s.frontend(), s.frontend()
	f.Close()
	if b.peers[f.number] != "" || b.peers[g.number] != "f" {
		t.Errorf("peers %v", b.peers)
	}
	if h := s.frontend(); h.number == f.number || h.number%FrontendsMax != f.number%FrontendsMax {
		t.Errorf("numbers %d and %d", h.number, f.number)
	}
}

// TestRequestsOfALostGPUMove shows that a lost GPU returns its batch, and that other GPUs serve the requests once.
func TestRequestsOfALostGPUMove(t *testing.T) {
	s := newStage(t, Options{})
	sick := s.mustBackend(hello("sick", 1, slope, "m"))
	sick.lose = func() bool { return true }
	f := s.frontend()
	f.ask(1, "m", 40*ms)
	f.ask(2, "m", 40*ms)
	s.run(38 * ms)
	if len(sick.batches) != 1 || len(s.events) != 1 {
		t.Fatalf("batches %v", sick.batches)
	}
	s.events[0].m.Failures = append(s.events[0].m.Failures, s.events[0].m.Failures...) // reported twice
	s.events[0].m.FreeIn = 3600e9
	s.run(100 * ms) // too late for others
	s.ended(1, "backend_lost")
	s.ended(2, "backend_lost")
	good := s.mustBackend(hello("good", 1, slope, "m"))
	f.ask(3, "m", 200*ms)
	f.ask(4, "m", 200*ms)
	s.run(500 * ms)
	s.ended(3, "output")
	s.ended(4, "output")
	good.lose = sick.lose // these requests kill every GPU
	f.ask(5, "m", 400*ms)
	s.run(1500 * ms)
	s.ended(5, "backend_lost")
	tries := 0
	for _, b := range append(sick.batches, good.batches...) {
		for _, id := range b {
			if id == 5 {
				tries++
			}
		}
	}
	st := s.e.Stats()
	if m := st.Models[0]; tries > 2 || st.Queued != 0 || m.Served != 2 || m.Outcomes[model.BackendLost] != 3 {
		t.Errorf("request 5 was tried %d times; %d queued, %d served, outcomes %v", tries, st.Queued, m.Served, m.Outcomes)
	}
}

func TestStrayAndRepeatedDone(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(hello("b", 1, slope, "m"))
	other := s.mustBackend(hello("other", 1, slope, "m"))
	f := s.frontend()
	f.ask(1, "m", 30*ms)
	s.run(26 * ms)
	if len(s.events) != 1 {
		t.Fatal("no batch is under way")
	}
	m := s.events[0].m
	thief := other
	if s.events[0].b == other {
		thief = b
	}
	thief.Done([]wire.Done{m})                                              // another backend's batch
	s.events[0].b.Done([]wire.Done{{Batch: 1 << 60}, {Batch: m.Batch + 1}}) // never sent
	s.run(60 * ms)
	s.ended(1, "output")
	s.e.Poll(s.clock.now)
	for _, x := range []*emulated{b, other} {
		x.Done([]wire.Done{m}) // again
	}
	if st := s.e.Stats(); st.Strays < 4 || st.Queued != 0 {
		t.Errorf("strays %d, queued %d", st.Strays, st.Queued)
	}
}

// TestDoneWithNonsense shows that a report with impossible times ends its batch, leaves the counters correct and
// costs the GPU at most an hour. A report that names another GPU is a stray.
func TestDoneWithNonsense(t *testing.T) {
	s := newStage(t, Options{})
	b := s.mustBackend(hello("b", 2, slope, "m"))
	b.hang = true
	f := s.frontend()
	f.ask(1, "m", 30*ms)
	s.run(26 * ms)
	x := &s.e.parts[0].batches[0]
	m := wire.Done{Batch: s.e.parts[0].wireID(0), GPU: x.gpu.index ^ 1, Exec: math.MinInt64, FreeIn: math.MaxInt64, Fetch: math.MinInt64}
	b.Done([]wire.Done{m})
	m.GPU = 9
	b.Done([]wire.Done{m})
	if st := s.e.Stats(); st.Strays != 2 || st.Models[0].Served != 0 {
		t.Errorf("strays %d, served %d, want 2 and 0", st.Strays, st.Models[0].Served)
	}
	m.GPU = x.gpu.index
	b.Done([]wire.Done{m})
	st := s.e.Stats()
	if st.Models[0].Served != 1 || st.Ctrl < 0 || st.Data < 0 || st.GPUs[m.GPU].Busy != 0 || st.Recent[0].End > s.clock.now+3600_000*ms {
		t.Errorf("stats %+v", st)
	}
	b.hang = false
	s.run(s.clock.now + 3600_001*ms)
	f.ask(2, "m", 30*ms)
	f.ask(3, "m", 30*ms)
	s.run(s.clock.now + 100*ms)
	s.ended(2, "output")
	s.ended(3, "output")
	if l := s.e.Stats().Load[0]; l.Idle != 2 {
		t.Errorf("%+v, want both GPUs idle", l)
	}
}

func TestFailuresAreCounted(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("b", 1, slope, "m"))
	f := s.frontend()
	f.ask(1, "m", 30*ms)
	f.ask(2, "m", 30*ms)
	s.run(24 * ms)
	s.events[0].m.Failures = []wire.ItemFailure{{Index: 1, Reason: model.InputUnavailable}, {Index: 99, Reason: 1}, {Index: 0, Reason: 200}}
	s.run(60 * ms)
	if m := s.e.Stats().Models[0]; m.Served != 1 || m.Outcomes[model.InputUnavailable] != 1 {
		t.Errorf("served %d, outcomes %v", m.Served, m.Outcomes)
	}
}

func TestHelloRefusals(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("b", 1, slope, "m", "n"))
	for want, change := range map[string]func(*wire.BackendHello){
		"no gpus, want at least one":               func(h *wire.BackendHello) { h.GPUs = nil },
		"no models, want at least one":             func(h *wire.BackendHello) { h.Models = nil },
		`model 0: name ""`:                         func(h *wire.BackendHello) { h.Models[0].Info.Name = "" },
		`model 2: name "m"`:                        func(h *wire.BackendHello) { h.Models = append(h.Models, h.Models[0]) },
		"ℓ(2) = 1ms is less than ℓ(1) = 2ms":       func(h *wire.BackendHello) { h.Models[0].Profile = []time.Duration{2e6, 1e6} },
		"empty table":                              func(h *wire.BackendHello) { h.Models[0].Profile = nil },
		"ℓ(1) = -1ns":                              func(h *wire.BackendHello) { h.Models[0].Profile = []time.Duration{-1} },
		"SLO 1ms is shorter than ℓ(1) = 5ms":       func(h *wire.BackendHello) { h.Models[0].Info.SLO = 1e6 },
		"SLO -1ns is shorter":                      func(h *wire.BackendHello) { h.Models[0].Info.SLO = -1 },
		"its inputs or outputs differ":             func(h *wire.BackendHello) { h.Models[0].Info.Inputs = []model.Tensor{{Name: "x"}} },
		"131073 gpus more than the 131072 allowed": func(h *wire.BackendHello) { h.GPUs = make([]string, GPUsMax+1) },
		"65536 new models":                         func(h *wire.BackendHello) { h.Models = make([]wire.BackendModel, ModelsMax) },
	} {
		h := hello("bad", 1, slope, "m", "n")
		change(&h)
		b := &emulated{s: s, peers: map[uint32]string{}}
		if _, err := s.e.OpenBackend(h, b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %s", err, want)
		}
	}
}

// TestEveryRequestEndsOnce sends the engine everything in a random order.
func TestEveryRequestEndsOnce(t *testing.T) {
	for seed := uint64(1); seed <= 60; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { storm(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func storm(t *testing.T, rng *rand.Rand) {
	s := newStage(t, Options{Partitions: 1 + rng.IntN(4), Cores: 1, QueueMax: 1 + rng.IntN(50), RequestsMax: 20 + rng.IntN(500)})
	var backends []*emulated
	window := uint32(1) << rng.IntN(17) // a small one: entries of queued requests are overwritten
	fronts := []*front{s.windowed(window), s.windowed(window)}
	owner := map[uint64]*front{}
	models := []string{"a", "b", "c", "d", "e"}
	for next := uint64(1); next < 3000; {
		switch k := rng.IntN(100); {
		case k < 2 && len(backends) < 6:
			h := hello(fmt.Sprint("b", next), 1+rng.IntN(3), slope[:1+rng.IntN(8)], models[:1+rng.IntN(5)]...)
			if b, err := s.backend(h); err == nil {
				b.hang = rng.IntN(5) == 0
				if rng.IntN(3) == 0 {
					b.lose = func() bool { return rng.IntN(4) == 0 }
					b.reason = []model.Reason{model.BackendLost, model.NoBackend}[rng.IntN(2)]
				}
				backends = append(backends, b)
			}
		case k < 3 && len(backends) > 0:
			i := rng.IntN(len(backends))
			backends[i].Close()
			backends = append(backends[:i], backends[i+1:]...)
		case k < 4 && rng.IntN(4) == 0:
			i := rng.IntN(len(fronts))
			fronts[i].Close()
			fronts[i] = s.windowed(window)
		case k < 10:
			fronts[rng.IntN(2)].Cancel([]wire.Cancel{{ID: next - uint64(rng.IntN(20))}})
		case k < 40:
			s.run(s.clock.now + sched.Time(rng.Int64N(int64(5*ms))))
		default:
			f := fronts[rng.IntN(2)]
			var m []wire.Submit
			for range 1 + rng.IntN(8) {
				m = append(m, wire.Submit{ID: next, Model: uint32(rng.IntN(6)), Priority: uint8(rng.IntN(2)), Budget: rng.Int64N(60e6)})
				owner[next] = f
				next++
			}
			f.Submit(m)
		}
	}
	s.run(s.clock.now + 100*ms)
	for _, b := range backends {
		if b.hang {
			b.Close()
		}
	}
	s.run(s.clock.now + 200*ms)
	for id, f := range owner {
		// A request whose entry was overwritten and whose backend was lost then ends without an outcome: its
		// frontend has ended it.
		if n := len(s.ends[id]); n > 1 || n == 0 && !f.closed.Load() && id+uint64(window) > uint64(len(owner)) {
			t.Fatalf("request %d ended %v", id, s.ends[id])
		}
	}
	if st := s.e.Stats(); st.Queued != 0 {
		t.Fatalf("%d requests queued at the end: %+v", st.Queued, st)
	}
	for _, p := range s.e.parts {
		if len(p.idle) != len(p.batches) {
			t.Fatalf("%d of %d batches under way at the end", len(p.batches)-len(p.idle), len(p.batches))
		}
	}
}
