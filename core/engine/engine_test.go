package engine

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// virtual is a clock that stands until told.
type virtual struct{ now sched.Time }

func (v *virtual) Now() sched.Time { return v.now }

const ms = sched.Time(time.Millisecond)

// stage is an engine on virtual time with frontends and emulated backends around it.
type stage struct {
	t      testing.TB
	e      *Engine
	clock  *virtual
	events []event // batches that will be done, unordered
	ends   map[uint64][]string
	watch  *watch
}

type event struct {
	at sched.Time
	b  *emulated
	m  wire.Done
	x  wire.Execute
}

func newStage(t testing.TB, o Options) *stage {
	s := &stage{t: t, clock: &virtual{now: ms}, ends: map[uint64][]string{}}
	o.Manual, o.Clock = true, s.clock
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.e, s.watch = e, s.newWatch(t)
	t.Cleanup(func() { e.Close() })
	return s
}

// front is a frontend that notes how requests end.
type front struct {
	*Frontend
	s       *stage
	answers []wire.ModelAnswer
	models  map[string]model.Info
}

// unlocked checks that a port is called with no lock held (I2).
func (s *stage) unlocked() {
	for _, p := range s.e.parts {
		if !p.mu.TryLock() {
			s.t.Error("I2: a port is called with a partition's lock held")
			return
		}
		p.mu.Unlock()
	}
	for _, r := range *s.e.rankers.Load() {
		if !r.mu.TryLock() {
			s.t.Error("I2: a port is called with a ranker's lock held")
			return
		}
		r.mu.Unlock()
	}
}

func (f *front) Models(m []model.Info) {
	f.s.unlocked()
	for _, i := range m {
		f.models[i.Name] = i
	}
}

func (f *front) Answers(m []wire.ModelAnswer) { f.answers = append(f.answers, m...) }

func (f *front) Submit(m []wire.Submit) bool {
	f.s.watch.submits(f.Number(), m)
	return f.Frontend.Submit(m)
}

func (f *front) Close() {
	f.s.watch.leaves(f.Number())
	f.Frontend.Close()
}

func (f *front) Outcomes(m []wire.Outcome) {
	f.s.unlocked()
	for _, o := range m {
		f.s.watch.ends(f.Number(), &o)
		f.s.ends[o.ID] = append(f.s.ends[o.ID], o.Reason.String())
	}
}

func (s *stage) frontend() *front { return s.windowed(0) }

// windowed is a frontend whose ids lie in a window of that many places; 0: the default.
func (s *stage) windowed(window uint32) *front {
	f := &front{s: s, models: map[string]model.Info{}}
	h, err := s.e.OpenFrontend(wire.FrontendHello{Name: "f", DataAddr: "f", Window: window}, f)
	if err != nil {
		s.t.Fatal(err)
	}
	f.Frontend = h
	return f
}

// emulated is a backend whose batches take what the profile says, on virtual time.
type emulated struct {
	*Backend
	s         *stage
	said      wire.BackendHello
	profile   []time.Duration
	hang      bool
	lose      func() bool  // asked for each item: the GPU gives it back; nil: it does not
	reason    model.Reason // with lose; 0: BackendLost
	untold    bool         // with lose: it tells nobody but the scheduler
	quick     bool         // its batches take no time
	strict    bool         // a batch that would start after its latest does not run
	tables    bool         // each model takes what its own profile says
	cut       bool
	batches   [][]uint64
	answers   map[uint64]uint32 // by request: the answer that its batch names
	asked     []wire.Placement
	steps     []wire.SpareStart
	commanded []wire.ModelCommand
	peers     map[uint32]string
	nodes     map[uint32]string     // backends, by their numbers
	running   map[uint32]sched.Time // until when each GPU is busy
}

// Spare keeps the steps: the test says when they end.
func (b *emulated) Spare(m []wire.SpareStart) { b.steps = append(b.steps, m...) }

func (b *emulated) Command(m []wire.ModelCommand) { b.commanded = append(b.commanded, m...) }
func (b *emulated) Place(m []wire.Placement)      { b.asked = append(b.asked, m...) }

func (b *emulated) Peers(m []wire.Peer) {
	b.s.unlocked()
	for _, p := range m {
		if p.Node != 0 {
			b.nodes[p.Node] = p.DataAddr
		} else {
			b.peers[p.Frontend] = p.DataAddr
		}
	}
}

func (b *emulated) Done(m []wire.Done) bool {
	for i := range m {
		b.s.watch.reports(b, &m[i])
	}
	return b.Backend.Done(m)
}

func (b *emulated) Close() {
	b.s.watch.closes(b)
	b.Backend.Close()
}

// tableOf is ℓ(b) as the backend said it last. Orders may come before its session is told to it.
func (b *emulated) tableOf(model uint32) []time.Duration {
	if b.Backend == nil {
		return b.said.Models[model].Profile
	}
	return b.hello.Models[model].Profile
}

func (b *emulated) Cut(error) {
	b.s.unlocked()
	b.cut = true
}

func (b *emulated) Execute(m []Order) {
	b.s.unlocked()
	for i := range m {
		var x wire.Execute
		m[i].Message(&x)
		b.s.watch.runs(b, &x, b.tableOf(x.Model))
		ids := []uint64{}
		for _, i := range x.Items {
			if addr, ok := b.peers[i.Frontend]; !ok || addr == "" {
				b.s.t.Errorf("item of frontend %d, which was not announced", i.Frontend)
			}
			ids = append(ids, i.ID)
			b.answers[i.ID] = x.Answer
		}
		b.batches = append(b.batches, ids)
		if b.hang {
			continue
		}
		start := max(b.s.clock.now+sched.Time(x.Start), b.running[x.GPU])
		profile := b.profile
		if b.tables {
			profile = b.hello.Models[x.Model].Profile
		}
		end := start + sched.Time(profile[len(x.Items)-1])
		if b.quick {
			end = start + 1
		}
		b.running[x.GPU] = end
		done := wire.Done{Batch: x.Batch, GPU: x.GPU, Exec: int64(end - start)}
		if b.strict && start > b.s.clock.now+sched.Time(x.Latest) {
			end, b.running[x.GPU], done.Exec = start, start, 0
			for k := range x.Items {
				done.Failures = append(done.Failures, wire.ItemFailure{Index: uint32(k), Reason: model.DeadlineCannotBeMet, Untold: true})
			}
		}
		for k := range x.Items {
			if b.lose != nil && b.lose() {
				done.Failures = append(done.Failures, wire.ItemFailure{Index: uint32(k), Reason: cmp.Or(b.reason, model.BackendLost), Untold: b.untold})
				if !b.untold {
					done.FreeIn = int64(20 * ms)
				}
			}
		}
		b.s.events = append(b.s.events, event{at: end, b: b, x: x, m: done})
	}
}

func hello(name string, gpus int, profile []time.Duration, models ...string) wire.BackendHello {
	h := wire.BackendHello{Name: name, GPUs: make([]string, gpus)}
	for _, m := range models {
		h.Models = append(h.Models, wire.BackendModel{Info: model.Info{Name: m, Version: "1", SLO: 50e6}, Profile: profile})
	}
	return h
}

var slope = []time.Duration{5e6, 6e6, 7e6, 8e6, 9e6, 10e6, 11e6, 12e6}

func (s *stage) backend(h wire.BackendHello) (*emulated, error) {
	b := &emulated{s: s, said: h, profile: h.Models[0].Profile, peers: map[uint32]string{}, nodes: map[uint32]string{}, running: map[uint32]sched.Time{}, answers: map[uint64]uint32{}}
	x, err := s.e.OpenBackend(h, b)
	b.Backend = x
	return b, err
}

func (s *stage) mustBackend(h wire.BackendHello) *emulated {
	s.t.Helper()
	b, err := s.backend(h)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// run advances virtual time to the given moment.
func (s *stage) run(to sched.Time) {
	for {
		at := min(s.e.NextWake(), to)
		k := -1
		for i := range s.events {
			if s.events[i].at <= at {
				at, k = s.events[i].at, i
			}
		}
		s.clock.now = max(s.clock.now, at)
		if k < 0 {
			s.e.Poll(s.clock.now)
			if at >= to {
				return
			}
			continue
		}
		ev := s.events[k]
		s.events = append(s.events[:k], s.events[k+1:]...)
		if ev.b.closed.Load() {
			continue
		}
		for k, i := range ev.x.Items {
			if !slices.ContainsFunc(ev.m.Failures, func(f wire.ItemFailure) bool {
				return int(f.Index) == k && (f.Untold || f.Reason == model.BackendLost || f.Reason == model.NoBackend)
			}) {
				s.ends[i.ID] = append(s.ends[i.ID], "output")
			}
		}
		ev.b.Done([]wire.Done{ev.m})
		s.e.Poll(s.clock.now)
	}
}

func (s *stage) ended(id uint64, want ...string) {
	s.t.Helper()
	if got := s.ends[id]; fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("request %d ended %v, want %v", id, got, want)
	}
}

func (f *front) ask(id uint64, model string, budget sched.Time) {
	f.Submit([]wire.Submit{{ID: id, Model: f.models[model].ID, Budget: int64(budget)}})
}

// TestServedModelsAreTold: a frontend is told what it needs to ask for a model, and when nobody serves it any more. What
// becomes of requests is in testdata/scripts.
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

// TestFrontendNumbers: backends forget a frontend that has left; its slot is used again, its number is not.
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

// TestRequestsOfALostGPUMove: a GPU that is lost gives its batch back; others serve it, once.
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
	s.events[0].m.Failures = append(s.events[0].m.Failures, s.events[0].m.Failures...) // said twice
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
	good.lose = sick.lose // what they run kills every GPU
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

// TestDoneWithNonsense: a report with times that cannot be ends its batch, leaves the counters sound and
// costs the GPU an hour at most; one that names another GPU is a stray.
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

// TestUnnamedKindsAreToldApartByProfiles: GPUs that name no kind are one sub-cluster where their profiles differ little, and
// two where they do not. Either way the queue survives whoever comes and goes.
func TestUnnamedKindsAreToldApartByProfiles(t *testing.T) {
	s := newStage(t, Options{})
	s.mustBackend(hello("fast", 1, []time.Duration{1e6, 2e6, 3e6, 4e6}, "m"))
	f := s.frontend()
	if f.models["m"].BatchMax != 4 {
		t.Errorf("alone: %+v", f.models["m"])
	}
	f.ask(1, "m", 50*ms)
	f.ask(2, "m", 50*ms)

	homes := func() string {
		text := ""
		for _, h := range s.e.reg.models[0].homes {
			text += fmt.Sprintf("%d%v", h.sub, h.table)
		}
		return text
	}
	b := s.mustBackend(hello("nearly as fast", 1, []time.Duration{1.1e6, 2e6, 3e6, 4.2e6}, "m"))
	if got := homes(); got != "1[1.1ms 2ms 3ms 4.2ms]" {
		t.Errorf("merged: %s", got)
	}
	c := s.mustBackend(hello("slow", 1, []time.Duration{2e6, 3e6}, "m"))
	if got := homes(); got != "1[1.1ms 2ms 3ms 4.2ms]2[2ms 3ms]" || f.models["m"].BatchMax != 4 {
		t.Errorf("two kinds: %s %+v", got, f.models["m"])
	}
	b.Close()
	if got := homes(); got != "1[1ms 2ms 3ms 4ms]2[2ms 3ms]" {
		t.Errorf("without the second: %s", got)
	}
	c.Close()
	if got := homes(); got != "1[1ms 2ms 3ms 4ms]" {
		t.Errorf("alone again: %s", got)
	}
	s.run(100 * ms)
	s.ended(1, "output")
	s.ended(2, "output")
}

// TestAKindIsOneSubClusterWhateverWasMeasured: two backends of one kind, measured on hosts of which one was busy, are one
// home, so that what they serve is not placed ahead of time as what several kinds serve is. Another kind is another home,
// though it is as fast, and so is the kind under another name.
func TestAKindIsOneSubClusterWhateverWasMeasured(t *testing.T) {
	s := newStage(t, Options{})
	of := func(name, kind string, percent time.Duration) wire.BackendHello {
		h := hello(name, 1, slices.Clone(slope), "m")
		for k := range slope {
			h.Models[0].Profile[k] = slope[k] * percent / 100
		}
		h.Details = []wire.GPUDetail{{Kind: kind, Memory: 1 << 30}}
		return h
	}
	homes := func() []home { return s.e.reg.models[0].homes }

	s.mustBackend(of("quiet", "h200", 100))
	s.mustBackend(of("quiet too", "h200", 101))
	busy := s.mustBackend(of("busy", "h200", 140))
	if h := homes(); len(h) != 1 || h[0].table[7] != slope[7]*101*115/10000 || s.e.reg.models[0].chooses {
		t.Fatalf("one kind has the homes %v", h)
	}

	// What is measured anew changes the profile that is planned with, not the sub-cluster.
	m := busy.hello.Models[0]
	m.Profile = slope
	if sub := busy.gpus[0].sub; !busy.Offer([]wire.Loadable{{Model: m}}) || busy.gpus[0].sub != sub {
		t.Errorf("the GPU that was measured anew went from sub-cluster %d to %d", sub, busy.gpus[0].sub)
	}
	if h := homes(); len(h) != 1 || h[0].table[7] != slope[7]*101/100 {
		t.Errorf("measured anew: the homes %v", h)
	}

	s.mustBackend(of("other", "h100", 100))
	named := of("night", "h200", 100)
	named.SubCluster = "night"
	s.mustBackend(named)
	if h := homes(); len(h) != 3 {
		t.Errorf("another kind and another name: the homes %v", h)
	}
}

// TestSubClusters: backends without a sub-cluster's name join those with the same models; a model
// that several sub-clusters have is served by all, and its queue goes on when one leaves.
func TestSubClusters(t *testing.T) {
	s := newStage(t, Options{Partitions: 3})
	ab := s.mustBackend(hello("ab", 2, slope, "a", "b"))
	bc := s.mustBackend(hello("bc", 1, slope, "b", "c"))
	f := s.frontend()
	if ab.gpus[0].sub == bc.gpus[0].sub || ab.gpus[0].sub != ab.gpus[1].sub || !f.models["a"].Ready || !f.models["b"].Ready || !f.models["c"].Ready {
		t.Fatalf("sub-clusters %d, %d, models %+v", ab.gpus[0].sub, bc.gpus[0].sub, f.models)
	}
	f.ask(1, "b", 40*ms)
	ab.Close()
	if f.models["a"].Ready || !f.models["b"].Ready {
		t.Errorf("after ab left: %+v", f.models)
	}
	f.ask(2, "c", 60*ms)
	s.run(100 * ms)
	s.ended(1, "output")
	s.ended(2, "output")
	if len(bc.batches) != 2 {
		t.Errorf("batches %v", bc.batches)
	}
}

// TestEveryRequestEndsOnce throws everything at the engine in a random order.
func TestEveryRequestEndsOnce(t *testing.T) {
	for seed := uint64(1); seed <= 60; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { storm(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func storm(t *testing.T, rng *rand.Rand) {
	s := newStage(t, Options{Partitions: 1 + rng.IntN(4), Cores: 1, QueueMax: 1 + rng.IntN(50), RequestsMax: 20 + rng.IntN(500)})
	var backends []*emulated
	window := uint32(1) << rng.IntN(17) // a small one: seats are taken over from those still queued
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
		// One whose seat was taken over, and then its backend was lost, ends unheard: its frontend has ended it.
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
