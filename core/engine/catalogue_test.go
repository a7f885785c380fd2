package engine

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// names returns the model ids in the catalogue by name.
func (s *stage) names() map[string]uint32 {
	all := map[string]uint32{}
	for _, m := range s.e.Models() {
		all[m.Name] = m.ID
	}
	return all
}

// come opens a backend in a separate sub-cluster and closes it.
func (s *stage) come(models ...string) {
	s.t.Helper()
	s.mustBackend(hello("passer-by", 1, slope, models...)).Close()
}

// TestModelsAreForgotten shows that a model that nobody serves is known for an hour, and then forgotten at the next
// hello. Its id rests before another model gets it, with its own counts.
func TestModelsAreForgotten(t *testing.T) {
	s := newStage(t, Options{Partitions: 2})
	f := s.frontend()
	old := s.mustBackend(hello("b", 1, slope, "old"))
	s.mustBackend(hello("c", 1, slope, "steady"))
	id := f.models["old"].ID
	f.Submit([]wire.Submit{{ID: 1, Model: id, Budget: 50e6}})
	s.run(100 * ms)
	s.ended(1, "output")
	old.Close()

	hour, minute := sched.Time(keptMax), sched.Time(restMin)
	s.run(hour)
	s.come("early")
	f.Submit([]wire.Submit{{ID: 2, Model: id, Budget: 50e6}})
	s.ended(2, "no_backend")
	if got, ok := s.names()["old"]; !ok || got != id {
		t.Fatalf("before an hour is over: %v", s.names())
	}

	s.run(hour + 200*ms)
	s.come("second")
	if _, ok := s.names()["old"]; ok || len(s.names()) != 3 {
		t.Fatalf("after an hour: %v", s.names())
	}
	if m, told := f.models[""]; !told || m.ID != id {
		t.Errorf("the frontend was not told: %+v", f.models)
	}
	f.Submit([]wire.Submit{{ID: 3, Model: id, Budget: 50e6}})
	s.ended(3, "unknown_model")
	if got := s.names()["second"]; got == id {
		t.Errorf("id %d names another model at once", id)
	}

	s.run(hour + 200*ms + minute)
	s.mustBackend(hello("d", 1, slope, "third"))
	if got := f.models["third"].ID; got != id {
		t.Fatalf("the third model got id %d, want %d", got, id)
	}
	for _, m := range s.e.Stats().Models {
		if m.Name == "third" && (m.ID != id || m.Accepted+m.Served+m.Batches+m.Outcomes[model.UnknownModel] != 0) {
			t.Errorf("a new model begins with %+v", m)
		}
	}
	f.Submit([]wire.Submit{{ID: 4, Model: id, Budget: 50e6}})
	s.run(hour + minute + 400*ms)
	s.ended(4, "output")
}

// TestWhoReturnsIsKnown shows that a backend that returns within the hour finds its model under the same id and with
// its counts.
func TestWhoReturnsIsKnown(t *testing.T) {
	s := newStage(t, Options{})
	for k := range 3 {
		s.run(sched.Time(k) * sched.Time(keptMax) * 9 / 10)
		s.come("m", fmt.Sprint("other", k))
		if id := s.names()["m"]; id != 0 {
			t.Errorf("visit %d: id %d", k, id)
		}
	}
	s.mustBackend(hello("b", 1, slope, "m", "n"))
	s.run(10 * sched.Time(keptMax))
	s.come("x")
	if all := s.names(); len(all) != 3 || all["m"] != 0 {
		t.Errorf("what is served was forgotten: %v", all)
	}
}

// TestNamesMadeUp shows that a backend that announces new names again and again fills the catalogue for an hour,
// while known backends are still admitted.
func TestNamesMadeUp(t *testing.T) {
	s := newStage(t, Options{Partitions: 3})
	made := 0
	visit := func(models int) error {
		var names []string
		for range models {
			names = append(names, fmt.Sprint("made", made))
			made++
		}
		b, err := s.backend(hello("b", 1, slope[:1], names...))
		if err == nil {
			b.Close()
		}
		return err
	}
	const step = ModelsMax / 16
	for k := range 16 {
		if err := visit(step); err != nil {
			t.Fatalf("hello %d: %v", k, err)
		}
	}
	const noRoom = "1 new models, but there is room for 0"
	if err := visit(1); err == nil || !strings.Contains(err.Error(), noRoom) {
		t.Fatalf("over the limit: %v, want %s", err, noRoom)
	}
	s.come("made7")                   // a known model
	s.clock.now = sched.Time(keptMax) // nothing happens in that time
	s.run(sched.Time(keptMax) + 100*ms)
	if err := visit(1); err == nil || !strings.Contains(err.Error(), noRoom) {
		t.Fatalf("the ids did not rest: %v, want %s", err, noRoom)
	}
	s.clock.now = sched.Time(keptMax + restMin)
	s.run(sched.Time(keptMax+restMin) + 200*ms)
	if err := visit(step); err != nil {
		t.Error(err)
	}
	if n := len(s.e.reg.models); n != ModelsMax {
		t.Errorf("%d ids, want %d", n, ModelsMax)
	}
}

// leaping is a clock that jumps on request.
type leaping struct {
	Monotonic
	by atomic.Int64
}

func (l *leaping) Now() sched.Time { return l.Monotonic.Now() + sched.Time(l.by.Load()) }

// TestForgettingUnderLoad runs hellos with new names, passing hours, requests to all possible ids, and snapshots, all
// at once. Every request ends, and the ids stay few.
func TestForgettingUnderLoad(t *testing.T) {
	clock := &leaping{}
	e, err := New(Options{Cores: 2, Partitions: 3, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	l := &live{}
	_, stop := newPrompt(l).open(t, e, "steady", []string{"steady"})
	defer stop()
	f, err := e.OpenFrontend(wire.FrontendHello{}, l)
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	var caller sync.WaitGroup
	over := make(chan struct{})
	caller.Add(1)
	go func() {
		defer caller.Done()
		for id := uint64(1); id < 1<<17; id++ {
			select {
			case <-over:
				return
			default:
			}
			last = id
			f.Submit([]wire.Submit{{ID: id, Model: uint32(id % 16), Budget: int64(10 * time.Millisecond)}})
			if id%64 == 0 {
				e.Stats()
				time.Sleep(time.Millisecond)
			}
		}
	}()
	for k := range 200 {
		p := newPrompt(l)
		p.dies = true
		_, done := p.open(t, e, "guest", []string{fmt.Sprint("a", k), fmt.Sprint("b", k)})
		done()
		clock.by.Add(int64(keptMax) + int64(restMin))
	}
	close(over)
	caller.Wait()
	for deadline := time.Now().Add(10 * time.Second); l.missing(last) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d requests did not end: %+v", l.missing(last), last, e.Stats())
		}
	}
	if n := len(e.Models()); n > 8 {
		t.Errorf("%d models are known, want the steady one and the latest", n)
	}
	_ = e.runInRegistry(func() {
		if n := len(e.reg.models); n > 16 {
			t.Errorf("%d ids for 401 models", n)
		}
	})
}
