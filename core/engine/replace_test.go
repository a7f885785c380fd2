package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// quiet is a frontend that needs no answers: the engine counts outputs when a batch is done.
type quiet struct{}

func (quiet) Models([]model.Info)        {}
func (quiet) Outcomes(m []wire.Outcome)  {}
func (quiet) Answers([]wire.ModelAnswer) {}

// instant is a backend that reports each batch at once, from its own goroutine.
type instant struct{ in chan wire.Done }

func (p *instant) Place([]wire.Placement)      {}
func (p *instant) Command([]wire.ModelCommand) {}

func (p *instant) Spare([]wire.SpareStart) {}

func (p *instant) Peers([]wire.Peer) {}
func (p *instant) Cut(error)         {}
func (p *instant) Execute(m []Order) {
	for _, x := range m {
		select {
		case p.in <- wire.Done{Batch: x.Batch, GPU: x.GPU, Exec: 1000}:
		default: // the backend is gone
		}
	}
}

// openInstant opens a session of an instant backend; the returned function closes it.
func openInstant(t *testing.T, e *Engine, name string, profile []time.Duration, models []string) (leave func()) {
	p := &instant{in: make(chan wire.Done, 1<<12)}
	b, err := e.OpenBackend(hello(name, 2, profile, models...), p)
	if err != nil {
		t.Fatal(err)
	}

	gone := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() {
		for {
			select {
			case m := <-p.in:
				b.Done([]wire.Done{m})
			case <-gone:
				return
			}
		}
	})
	return func() { b.Close(); close(gone); reporting.Wait() }
}

// loadModels keeps callers busy with bursts for all models in turn. The first returned function waits until they have
// offered that many more requests, the second one ends them.
func loadModels(t *testing.T, e *Engine, callers, models int) (awaitOffered func(uint64), end func()) {
	var halt atomic.Bool
	var offered atomic.Uint64
	var busy sync.WaitGroup
	for c := range callers {
		f, err := e.OpenFrontend(wire.FrontendHello{}, quiet{})
		if err != nil {
			t.Fatal(err)
		}
		busy.Go(func() {
			defer f.Close()
			for id := uint64(1); !halt.Load(); {
				var m []wire.Submit
				for range 8 {
					m = append(m, wire.Submit{ID: id, Model: uint32((id + uint64(c)) % uint64(models)), Budget: 20e6})
					id++
				}
				f.Submit(m)
				offered.Add(uint64(len(m)))
				if id%64 == 1 {
					time.Sleep(50 * time.Microsecond)
				}
			}
		})
	}

	awaitOffered = func(more uint64) {
		for until := offered.Load() + more; offered.Load() < until; {
			time.Sleep(time.Millisecond)
		}
	}
	return awaitOffered, func() { halt.Store(true); busy.Wait() }
}

// TestEveryModelIsServedAfterChanges: under load, models change their profiles, or lose their only backend and get it
// back, sixty times, each time after as many requests as a million a second make in 20 ms. Meanwhile the candidates
// of many goroutines overtake each other. Afterwards each model must be served. The test counts outputs, because a
// dropped request has also ended.
func TestEveryModelIsServedAfterChanges(t *testing.T) {
	const count, changes, asked = 40, 60, 10
	const between = 20_000
	steady := []time.Duration{20_000, 22_000, 24_000, 26_000}
	guest := []time.Duration{30_000, 32_000, 34_000, 36_000}
	var models []string
	for i := range count {
		models = append(models, fmt.Sprint("m", i))
	}

	for how, change := range map[string]func(e *Engine, leave *func()){
		"another profile comes and goes": func(e *Engine, _ *func()) {
			openInstant(t, e, "guest", guest, models)()
		},
		"the only backend reconnects": func(e *Engine, leave *func()) {
			(*leave)()
			*leave = openInstant(t, e, "steady", steady, models)
		},
	} {
		t.Run(how, func(t *testing.T) {
			e, err := New(Options{Prompt: 1}) // an idle GPU is used at once, so no output depends on a timer of a busy host
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			leave := openInstant(t, e, "steady", steady, models)
			awaitOffered, end := loadModels(t, e, 6, count)
			for range changes {
				awaitOffered(between)
				change(e, &leave)
			}
			end()

			expectServed(t, e, count, asked)
			leave()
		})
	}
}

// expectServed requests each outputs of every model, one at a time on idle GPUs, with enough time for a host that
// also does other things.
func expectServed(t *testing.T, e *Engine, models, each int) {
	t.Helper()
	f, err := e.OpenFrontend(wire.FrontendHello{}, quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	awaitIdle(e)
	before := e.Stats()
	served := func(m int) uint64 { return e.Stats().Models[m].Served - before.Models[m].Served }

	// A round ends when the model that is served last has its output, because even an idle engine may not have
	// counted one yet.
	for k := range each {
		for m := range models {
			f.Submit([]wire.Submit{{ID: uint64(k*models + m + 1), Model: uint32(m), Budget: 60e9}})
		}
		for m := range models {
			for limit := time.Now().Add(time.Minute); served(m) <= uint64(k) && time.Now().Before(limit); {
				time.Sleep(time.Millisecond)
			}
			if n := served(m); n <= uint64(k) {
				t.Fatalf("of model %s %d of %d requests were served on idle GPUs; others ended as %v", before.Models[m].Name, n, k+1, e.Stats().Models[m].Outcomes)
			}
		}
	}
}

// awaitIdle waits until nothing is queued and every batch is done, or for a minute.
func awaitIdle(e *Engine) {
	idle := func() bool {
		s := e.Stats()
		for _, g := range s.GPUs {
			if g.Running {
				return false
			}
		}
		return s.Queued == 0
	}
	for limit := time.Now().Add(time.Minute); !idle() && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
	}
}
