package observe

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/core/engine"
)

// Engine is the engine that a Scheduler observes; *engine.Engine implements it. Each call takes locks of the request
// path.
type Engine interface {
	Stats() engine.Stats
	Explain() (engine.Explanation, error)
}

// tick is the interval between looks. Looks on request are at least freshEvery apart.
const (
	tick       = 250 * time.Millisecond
	freshEvery = 10 * time.Millisecond
)

// busySpan is the shortest time over which a GPU's busy fraction is measured: over one tick a single long batch would
// look like a busy GPU.
const busySpan = time.Second

// Snapshot is the state of an engine at one moment. Its readers share it and must not change it.
type Snapshot struct {
	engine.Stats
	Busy map[uint32]float64 // share of the last second that a GPU spent on batches, by its id
}

// Scheduler takes a snapshot of an engine every 250 ms, for all readers. Its methods may be called from any
// goroutine.
type Scheduler struct {
	engine Engine
	latest atomic.Pointer[Snapshot]
	looks  *shared[*Snapshot]
	whys   *shared[explained]
	depth  *prometheus.HistogramVec
	told   []engine.ModelStats // models with series in depth; owned by its goroutine

	// The base of the busy fractions. Only one look runs at a time, and guards it.
	before map[uint32]int64 // busy time of each GPU
	at     time.Duration    // time of that look on the engine's clock
	busy   map[uint32]float64

	closing chan struct{}
	running sync.WaitGroup
}

type explained struct {
	explanation engine.Explanation
	err         error
}

// Watch takes snapshots of an engine until Close.
func Watch(e Engine) *Scheduler {
	s := newScheduler(e)
	s.running.Go(s.runTicks)
	return s
}

// newScheduler takes the first snapshot, so that there is always one.
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

// Close ends the snapshots. The engine may be closed afterwards.
func (s *Scheduler) Close() error {
	close(s.closing)
	s.running.Wait()
	return nil
}

// Latest returns the latest snapshot. It is seldom older than 250 ms, and costs the engine nothing.
func (s *Scheduler) Latest() *Snapshot { return s.latest.Load() }

// Fresh returns a snapshot that began after the call, so it includes everything that had ended by then. All callers
// during a look share the next one. A look begins at the earliest 10 ms after the previous one; Fresh waits for it.
func (s *Scheduler) Fresh() *Snapshot { return s.looks.freshValue() }

// Explain returns the engine's explanation of its prices, accuracies and drops, shared like Fresh's snapshots. The
// error is engine.ErrClosed.
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

// look takes a snapshot and makes it the latest. It takes each of the engine's locks once.
func (s *Scheduler) look() *Snapshot {
	found := &Snapshot{Stats: s.engine.Stats()}
	if passed := time.Duration(found.Now) - s.at; passed >= busySpan || s.at == 0 {
		s.measureBusy(&found.Stats, passed)
	}

	// The map is replaced and never written to, so snapshots may share it.
	found.Busy = s.busy
	s.latest.Store(found)
	return found
}

// measureBusy sets each GPU's busy fraction since the last time.
func (s *Scheduler) measureBusy(now *engine.Stats, passed time.Duration) {
	busy, before := make(map[uint32]float64, len(now.GPUs)), make(map[uint32]int64, len(now.GPUs))
	for _, g := range now.GPUs {
		before[g.ID] = g.Busy

		// A new GPU has no earlier time to compare with.
		if b, ok := s.before[g.ID]; ok && passed > 0 {
			busy[g.ID] = min(1, max(0, float64(g.Busy-b)/float64(passed)))
		}
	}
	s.before, s.busy, s.at = before, busy, time.Duration(now.Now)
}

// observeDepths takes a snapshot and records the queue depths. Only ticks call it, because looks on request are not
// evenly spaced.
func (s *Scheduler) observeDepths() {
	type version struct{ name, version string }
	found := s.looks.freshValue()
	known := make(map[version]bool, len(found.Models))
	for _, m := range found.Models {
		known[version{m.Name, m.Version}] = true
		s.depth.WithLabelValues(m.Name, m.Version).Observe(float64(m.Queued))
	}

	// Otherwise the histogram of a model that the engine has forgotten would be exported for ever.
	for _, m := range s.told {
		if !known[version{m.Name, m.Version}] {
			s.depth.DeleteLabelValues(m.Name, m.Version)
		}
	}
	s.told = found.Models
}
