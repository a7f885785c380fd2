package observe

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/core/engine"
)

// Engine is what a Scheduler looks at: an *engine.Engine. Each call takes locks that requests are scheduled under.
type Engine interface {
	Stats() engine.Stats
	Explain() (engine.Explanation, error)
}

// tick is the time between two looks. Between looks that readers ask for lies freshEvery at least, whatever they do.
const (
	tick       = 250 * time.Millisecond
	freshEvery = 10 * time.Millisecond
)

// busySpan is the least time that a GPU's busy fraction is of: over one tick a single long batch would make it look busy.
const busySpan = time.Second

// Snapshot is what one look at an engine has found. It is shared by its readers, who must not change it.
type Snapshot struct {
	engine.Stats
	Busy map[uint32]float64 // part of the last second that a GPU spent on batches, by its id
}

// Scheduler looks at an engine every 250 ms, for all who want to know of it. Its methods may be called from any goroutine.
type Scheduler struct {
	engine Engine
	latest atomic.Pointer[Snapshot]
	looks  *shared[*Snapshot]
	whys   *shared[explained]
	depth  *prometheus.HistogramVec
	told   []engine.ModelStats // that depth has series of; its own goroutine's

	// What busy fractions are measured from. One look is under way at a time, and guards them.
	before map[uint32]int64 // busy time of each GPU
	at     time.Duration    // of the engine's clock, when it was
	busy   map[uint32]float64

	closing chan struct{}
	running sync.WaitGroup
}

type explained struct {
	explanation engine.Explanation
	err         error
}

// Watch looks at an engine from now on, until Close.
func Watch(e Engine) *Scheduler {
	s := newScheduler(e)
	s.running.Go(s.runTicks)
	return s
}

// newScheduler has looked once, so that there is always a snapshot.
func newScheduler(e Engine) *Scheduler {
	s := &Scheduler{engine: e, closing: make(chan struct{}), busy: map[uint32]float64{},
		depth: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "downbeat_inference_queue_depth",
			Help: "Requests queued per model, looked at four times a second.", Buckets: prometheus.ExponentialBuckets(1, 2, 16)}, modelLabels)}
	s.looks = newShared(freshEvery, s.look)
	s.whys = newShared(freshEvery, func() explained {
		x, err := e.Explain()
		return explained{x, err}
	})
	s.observeDepths()
	return s
}

// Close ends the looks. The engine may be closed afterwards.
func (s *Scheduler) Close() error {
	close(s.closing)
	s.running.Wait()
	return nil
}

// Latest returns what the latest look found. It is seldom older than 250 ms, and costs the engine nothing.
func (s *Scheduler) Latest() *Snapshot { return s.latest.Load() }

// Fresh returns what a look found that began after the call: it counts whatever had ended by then. All who call while a
// look is under way share the next one, and a look begins 10 ms after the one before at the earliest; Fresh waits for it.
func (s *Scheduler) Fresh() *Snapshot { return s.looks.freshValue() }

// Explain returns what the engine says of its prices, accuracies and drops, shared as Fresh is. The error is
// engine.ErrClosed.
func (s *Scheduler) Explain() (engine.Explanation, error) {
	x := s.whys.freshValue()
	return x.explanation, x.err
}

func (s *Scheduler) runTicks() {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-t.C:
			s.observeDepths()
		}
	}
}

// look takes a snapshot and makes it the latest. The engine's locks are taken once each.
func (s *Scheduler) look() *Snapshot {
	found := &Snapshot{Stats: s.engine.Stats()}
	if passed := time.Duration(found.Now) - s.at; passed >= busySpan || s.at == 0 {
		s.measureBusy(&found.Stats, passed)
	}

	// The map is replaced and never written to, so that snapshots may share it.
	found.Busy = s.busy
	s.latest.Store(found)
	return found
}

// measureBusy sets each GPU's busy fraction since the last time.
func (s *Scheduler) measureBusy(now *engine.Stats, passed time.Duration) {
	busy, before := make(map[uint32]float64, len(now.GPUs)), make(map[uint32]int64, len(now.GPUs))
	for _, g := range now.GPUs {
		before[g.ID] = g.Busy

		// A GPU that has just come has no time before to compare with.
		if b, ok := s.before[g.ID]; ok && passed > 0 {
			busy[g.ID] = min(1, max(0, float64(g.Busy-b)/float64(passed)))
		}
	}
	s.before, s.busy, s.at = before, busy, time.Duration(now.Now)
}

// observeDepths looks and notes how deep queues are. It is for ticks alone: looks that readers ask for would make the
// depths' times uneven.
func (s *Scheduler) observeDepths() {
	type version struct{ name, version string }
	found := s.looks.freshValue()
	known := make(map[version]bool, len(found.Models))
	for _, m := range found.Models {
		known[version{m.Name, m.Version}] = true
		s.depth.WithLabelValues(m.Name, m.Version).Observe(float64(m.Queued))
	}

	// The histogram of a model that the engine has forgotten would be told for ever.
	for _, m := range s.told {
		if !known[version{m.Name, m.Version}] {
			s.depth.DeleteLabelValues(m.Name, m.Version)
		}
	}
	s.told = found.Models
}
