package engine

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// live is a frontend in real time that counts how its requests end.
type live struct {
	ended  [1 << 17]atomic.Int32
	guests [1 << 17]atomic.Int32 // how often it was answered by a backend that may have died before it reported the batch
	models atomic.Int32
}

func (l *live) Models(m []model.Info) { l.models.Add(int32(len(m))) }

func (l *live) Answers([]wire.ModelAnswer) {}

func (l *live) Outcomes(m []wire.Outcome) {
	for _, o := range m {
		l.end(o.ID)
	}
}

func (l *live) end(id uint64) { l.ended[id].Add(1) }

func (l *live) missing(last uint64) (n int) {
	for id := uint64(1); id <= last; id++ {
		if l.ended[id].Load() == 0 {
			n++
		}
	}
	return n
}

// prompt is a backend that answers and reports each batch at once, from its own goroutine.
type prompt struct {
	l    *live
	in   chan wire.Done
	gone chan struct{}
	mute atomic.Bool
	dies bool
}

func newPrompt(l *live) *prompt {
	return &prompt{l: l, in: make(chan wire.Done, 4096), gone: make(chan struct{})}
}

func (p *prompt) Place([]wire.Placement)      {}
func (p *prompt) Command([]wire.ModelCommand) {}

func (p *prompt) Spare([]wire.SpareStart) {}

func (p *prompt) Peers([]wire.Peer) {}
func (p *prompt) Cut(error)         {}

func (p *prompt) Execute(m []Order) {
	for _, x := range m {
		if p.mute.Load() {
			continue
		}
		for i := range x.Requests {
			id := uint64(x.Requests[i].ID)
			if p.dies {
				p.l.guests[id].Add(1)
			}
			p.l.end(id)
		}
		p.in <- wire.Done{Batch: x.Batch, GPU: x.GPU, Exec: 1000}
	}
}

func (p *prompt) open(t *testing.T, e *Engine, name string, models []string) (b *Backend, done func()) {
	b, err := e.OpenBackend(hello(name, 2, []time.Duration{100_000, 110_000, 120_000, 130_000}, models...), p)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			select {
			case m := <-p.in:
				b.Done([]wire.Done{m})
			case <-p.gone:
				return
			}
		}
	}()
	return b, func() {
		b.Close()
		close(p.gone)
		wg.Wait()
	}
}

// TestRealLoops runs everything at once in real time: loops, many callers, backends that come and go, some of them
// silent, cancellations, snapshots. Every request ends exactly once, and once more for each backend that answered it and was
// gone before it reported the batch.
func TestRealLoops(t *testing.T) {
	e, err := New(Options{Cores: 2, Partitions: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	models := []string{"a", "b", "c", "d", "e"}
	l := &live{}
	steady := newPrompt(l)
	_, stop := steady.open(t, e, "steady", models)
	defer stop()
	f, err := e.OpenFrontend(wire.FrontendHello{}, l)
	if err != nil {
		t.Fatal(err)
	}
	var next atomic.Uint64
	var callers sync.WaitGroup
	for c := range 4 {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for k := range 300 {
				var m []wire.Submit
				for range 1 + (c+k)%7 {
					m = append(m, wire.Submit{ID: next.Add(1), Model: uint32(c+k) % 6, Budget: int64(time.Duration(k%20) * time.Millisecond)})
				}
				f.Submit(m)
				if k%5 == 0 {
					f.Cancel([]wire.Cancel{{ID: m[0].ID}})
				}
				if k%50 == 0 {
					e.Stats()
				}
			}
		}()
	}
	for k := range 10 {
		p := newPrompt(l)
		p.dies = true
		_, done := p.open(t, e, fmt.Sprint("guest", k), models)
		p.mute.Store(k%2 == 0)
		g, err := e.OpenFrontend(wire.FrontendHello{}, &live{})
		if err != nil {
			t.Fatal(err)
		}
		g.Submit([]wire.Submit{{ID: 1<<17 - 1, Model: 0, Budget: 1e9}})
		time.Sleep(2 * time.Millisecond)
		g.Close()
		done()
	}
	callers.Wait()
	for deadline := time.Now().Add(10 * time.Second); l.missing(next.Load()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d requests did not end: %+v", l.missing(next.Load()), next.Load(), e.Stats())
		}
	}
	for id := uint64(1); id <= next.Load(); id++ {
		if n, guests := l.ended[id].Load(), l.guests[id].Load(); n < 1 || n > 1+guests {
			t.Errorf("request %d ended %d times, %d of them by backends that died", id, n, guests)
		}
	}
}

// TestCloseWhileBusy shows that Close returns, and that sessions refuse calls afterwards.
func TestCloseWhileBusy(t *testing.T) {
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := &live{}
	p := newPrompt(l)
	b, stop := p.open(t, e, "b", []string{"a"})
	f, err := e.OpenFrontend(wire.FrontendHello{}, l)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for id := uint64(1); f.Submit([]wire.Submit{{ID: id, Budget: 1e6}}) && id < 1<<16; id++ {
		}
	}()
	time.Sleep(5 * time.Millisecond)
	e.Close()
	e.Close()
	wg.Wait()
	if b.Done(nil) || f.Cancel(nil) {
		t.Error("a closed engine takes messages")
	}
	if _, err := e.OpenFrontend(wire.FrontendHello{}, l); err != ErrClosed {
		t.Errorf("open after close: %v", err)
	}
	f.Close()
	stop()
}

// TestLoopsSleep shows that an engine with nothing to do uses next to no CPU: its loops wake twenty times a second.
func TestLoopsSleep(t *testing.T) {
	e, err := New(Options{Cores: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	before, began := e.loops[0].naps.Load(), time.Now()
	time.Sleep(300 * time.Millisecond)
	n, slept := e.loops[0].naps.Load()-before, time.Since(began) // longer on a busy host
	if int64(n) > int64(slept/(10*time.Millisecond)) {
		t.Errorf("%d naps in %v", n, slept)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]Options{
		"-1 cores, want 1 to 64":             {Cores: -1},
		"1000 cores, want 1 to 64":           {Cores: 1000},
		"2 partitions, want 4 (cores) to 64": {Cores: 4, Partitions: 2},
		"-1 requests, want 1 to":             {RequestsMax: -1},
		"network delays -1ns and 0s":         {Ctrl: -1},
		"queue maximum -1":                   {QueueMax: -1},
	} {
		if e, err := New(o); err == nil {
			e.Close()
			t.Errorf("accepted, want an error that says %s", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %s", err, want)
		}
	}
}
