package observe

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/sched"
)

// Counted counts the walks over an engine's locks.
type Counted struct {
	Engine
	Walks atomic.Int64
}

func (c *Counted) Stats() engine.Stats {
	c.Walks.Add(1)
	return c.Engine.Stats()
}

// slowEngine takes a second to answer, and counts the requests that it has seen.
type slowEngine struct{ walks, whys, seen atomic.Int64 }

func (s *slowEngine) Stats() engine.Stats {
	s.walks.Add(1)
	found := engine.Stats{Queued: int(s.seen.Load())}
	time.Sleep(time.Second)
	return found
}

func (s *slowEngine) Explain() (engine.Explanation, error) {
	s.whys.Add(1)
	time.Sleep(time.Second)
	return engine.Explanation{}, engine.ErrClosed
}

// TestReadersShareALook shows that one look at the engine serves all readers that arrive during the previous one, and
// that each result is no older than its call.
func TestReadersShareALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &slowEngine{}
		s := newScheduler(e)
		const readers = 100
		e.walks.Store(0)

		var wait sync.WaitGroup
		read := func() {
			before := int(e.seen.Add(1))
			if found := s.Fresh(); found.Queued < before {
				t.Errorf("a reader who came after %d requests was told of %d", before, found.Queued)
			}
		}
		for range readers {
			wait.Go(read)
		}
		synctest.Wait() // one look is in progress, or waits for its time
		time.Sleep(500 * time.Millisecond)
		for range readers {
			wait.Go(read) // in the meantime
		}
		wait.Wait()
		if n := e.walks.Load(); n != 2 {
			t.Errorf("%d readers, half of them during a look: %d looks, want 2", 2*readers, n)
		}

		for range readers {
			wait.Go(func() {
				if _, err := s.Explain(); !errors.Is(err, engine.ErrClosed) {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		if n := e.whys.Load(); n > 2 {
			t.Errorf("%d readers: %d explanations, want 2 at most", readers, n)
		}
	})
}

// TestLatestCostsNothing shows that readers of the latest look take no lock of a real engine, nor does a page of
// metrics. Looks follow the clock.
func TestLatestCostsNothing(t *testing.T) {
	e, err := engine.New(engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()

	c := &Counted{Engine: e}
	s := newScheduler(c)
	p := NewProcess()
	p.SetScheduler(s)
	h := p.Handler("")

	var wait sync.WaitGroup
	for range 50 {
		wait.Go(func() {
			if s.Latest() == nil {
				t.Error("no look at the beginning")
			}
			if status, _ := ask(h, "/metrics", ""); status != 200 {
				t.Errorf("metrics: %d", status)
			}
		})
	}
	wait.Wait()
	if n := c.Walks.Load(); n != 1 {
		t.Errorf("50 readers: %d walks over the engine's locks, want the first look's alone", n)
	}
}

// TestTicks shows that there are four looks a second, and none after Close.
func TestTicks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Counted{Engine: fixedStats{Models: []engine.ModelStats{{Name: "m", Version: "1", Queued: 5}}}}
		s := Watch(c)
		time.Sleep(time.Second + tick/2)
		if n := c.Walks.Load(); n != 5 {
			t.Errorf("%d looks in a second, want the first and four", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n := c.Walks.Load(); n != 5 {
			t.Errorf("%d looks after Close", n-5)
		}
	})
}

// changing returns the statistics that it is given.
type changing struct{ stats engine.Stats }

func (c *changing) Stats() engine.Stats { return c.stats }

func (c *changing) Explain() (engine.Explanation, error) { return engine.Explanation{}, nil }

// TestSeriesOfForgottenModelsEnd shows that models that the scheduler has forgotten have no series.
func TestSeriesOfForgottenModelsEnd(t *testing.T) {
	registry := prometheus.NewRegistry()
	e := &changing{}
	s := newScheduler(e)
	registry.MustRegister(s)
	for i := range 100 {
		e.stats.Models = []engine.ModelStats{{ID: uint32(i), Name: fmt.Sprint("model", i), Version: "1"}}
		s.observeDepths()
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "downbeat_plan_") {
			continue // of no model
		}
		if len(f.Metric) != 1 {
			t.Errorf("%s has series of %d models; the scheduler knows one", f.GetName(), len(f.Metric))
		}
	}
}

// TestBusyIsOfASecond shows that looks in between do not change the share, and that a new GPU has none.
func TestBusyIsOfASecond(t *testing.T) {
	e := &changing{}
	s := newScheduler(e)
	look := func(at time.Duration, busy ...time.Duration) map[uint32]float64 {
		e.stats = engine.Stats{Now: sched.Time(at)}
		for i, b := range busy {
			e.stats.GPUs = append(e.stats.GPUs, engine.GPUStats{ID: uint32(i), Busy: int64(b)})
		}
		return s.look().Busy
	}

	look(time.Second, 0)
	for _, c := range []struct {
		at   time.Duration
		busy []time.Duration
		want string
	}{
		{1250 * time.Millisecond, []time.Duration{250 * time.Millisecond}, "map[]"},
		{2 * time.Second, []time.Duration{500 * time.Millisecond, 0}, "map[0:0.5]"},
		{2500 * time.Millisecond, []time.Duration{time.Second, 0}, "map[0:0.5]"},
		{4 * time.Second, []time.Duration{time.Second, time.Second}, "map[0:0.25 1:0.5]"},
	} {
		if got := fmt.Sprint(look(c.at, c.busy...)); got != c.want {
			t.Errorf("at %v: %s, want %s", c.at, got, c.want)
		}
	}
}
