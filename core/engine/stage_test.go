package engine

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// virtual is a clock that moves only on request.
type virtual struct{ now sched.Time }

func (v *virtual) Now() sched.Time { return v.now }

const ms = sched.Time(time.Millisecond)

// stage is an engine in virtual time with frontends and emulated backends around it.
type stage struct {
	t      testing.TB
	e      *Engine
	clock  *virtual
	events []event // future ends of batches, unordered
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

// front is a frontend that records how requests end.
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

// windowed returns a frontend with an id window of that size; 0: the default.
func (s *stage) windowed(window uint32) *front {
	f := &front{s: s, models: map[string]model.Info{}}
	h, err := s.e.OpenFrontend(wire.FrontendHello{Name: "f", DataAddr: "f", Window: window}, f)
	if err != nil {
		s.t.Fatal(err)
	}
	f.Frontend = h
	return f
}

// emulated is a backend whose batches take the time in the profile, in virtual time.
type emulated struct {
	*Backend
	s         *stage
	said      wire.BackendHello
	profile   []time.Duration
	hang      bool
	lose      func() bool     // called for each item: whether the GPU returns it; nil: it returns none
	reason    model.Reason    // with lose; 0: BackendLost
	untold    bool            // with lose: only the scheduler is told
	quick     bool            // its batches take no time
	strict    bool            // a batch that would start after its latest start does not run
	doubts    bool            // a batch that would usually end after its last deadline does not run
	kind      []time.Duration // the least profile with which its kind is planned; nil: its own
	tables    bool            // each model takes the time in its own profile
	cut       bool
	batches   [][]uint64
	answers   map[uint64]uint32 // by request: the answer that its batch names
	asked     []wire.Placement
	steps     []wire.SpareStart
	commanded []wire.ModelCommand
	peers     map[uint32]string
	nodes     map[uint32]string     // backends, by their numbers
	running   map[uint32]sched.Time // by GPU: the end of its batches
}

// Spare keeps the steps; the test ends them.
func (b *emulated) Spare(m []wire.SpareStart) { b.steps = append(b.steps, m...) }

func (b *emulated) Command(m []wire.ModelCommand) { b.commanded = append(b.commanded, m...) }

func (b *emulated) Place(m []wire.Placement) { b.asked = append(b.asked, m...) }

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

// tableOf returns ℓ(b) as the backend reported it last. Orders may come before it knows its session.
func (b *emulated) tableOf(model uint32) []time.Duration {
	switch {
	case b.kind != nil:
		return b.kind
	case b.Backend == nil:
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
		if b.strict && start > b.s.clock.now+sched.Time(x.Latest) || b.doubts && start+sched.Time(limits.Usual(end-start)) > lastDeadline(b.s.clock.now, &x) {
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

// lastDeadline returns the latest deadline of a batch that is sent now.
func lastDeadline(now sched.Time, x *wire.Execute) (last sched.Time) {
	for _, r := range x.Items {
		last = max(last, now+sched.Time(r.Budget)*sched.Time(time.Microsecond))
	}
	return last
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
