package observe

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"downbeat.dev/core/engine"
)

// Engine is the engine that a Scheduler reads: an *engine.Engine. Each call takes locks under which requests are
// scheduled.
type Engine interface {
	Stats() engine.Stats
	Explain() (engine.Explanation, error)
}

// tick is the time between two regular readings. Readings on demand are at least freshEvery apart.
const (
	tick       = 250 * time.Millisecond
	freshEvery = 10 * time.Millisecond
)

// busySpan is the shortest time for a GPU's busy fraction: over one tick, a single long batch would make the GPU look
// busy.
const busySpan = time.Second

// Snapshot is one reading of an engine. Readers share it and must not change it.
type Snapshot struct {
	engine.Stats
	Busy map[uint32]float64 // by GPU id: share of the last second that the GPU spent on batches
}

// Scheduler reads an engine every 250 ms on behalf of all observers. Its methods may be called concurrently.
type Scheduler struct {
	engine Engine
	latest atomic.Pointer[Snapshot]
	looks  *shared[*Snapshot]
	whys   *shared[explained]
	depth  *prometheus.HistogramVec
	told   []engine.ModelStats // models with a series in depth; used only by its own goroutine

	// State for the busy fractions. Only one reading runs at a time, and it guards these fields.
	before map[uint32]int64 // busy time of each GPU at the previous measurement
	at     time.Duration    // engine's clock at the previous measurement
	busy   map[uint32]float64

	closing chan struct{}
	running sync.WaitGroup
}

type explained struct {
	explanation engine.Explanation
	err         error
}

// Watch reads an engine from now on, until Close.
func Watch(e Engine) *Scheduler {
	s := newScheduler(e)
	s.running.Go(s.runTicks)
	return s
}

// newScheduler takes a first reading, so that a snapshot always exists.
func newScheduler(e Engine) *Scheduler {
	s := &Scheduler{engine: e, closing: make(chan struct{}), busy: map[uint32]float64{},
		depth: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "downbeat_inference_queue_depth",
			Help: "Requests queued, sampled four times a second.", Buckets: prometheus.ExponentialBuckets(1, 2, 16)}, modelLabels)}
	s.looks = newShared(freshEvery, s.look)
	s.whys = newShared(freshEvery, func() explained {
		x, err := e.Explain()
		return explained{x, err}
	})
	s.observeDepths()
	return s
}

// Close ends the readings. The engine may be closed afterwards.
func (s *Scheduler) Close() error {
	close(s.closing)
	s.running.Wait()
	return nil
}

// Latest returns the latest snapshot, which is rarely older than 250 ms. It does not touch the engine.
func (s *Scheduler) Latest() *Snapshot { return s.latest.Load() }

// Fresh returns a snapshot that began after the call, so that it counts everything that had ended before. All callers
// during a reading share the next one. Readings begin at least 10 ms apart, and Fresh waits for its own.
func (s *Scheduler) Fresh() *Snapshot { return s.looks.freshValue() }

// Explain returns the engine's explanation of prices, accuracies and drops, shared as in Fresh. Its error is
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

// look takes a snapshot and stores it as the latest. It takes each of the engine's locks once.
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

// measureBusy computes each GPU's busy fraction since the previous measurement.
func (s *Scheduler) measureBusy(now *engine.Stats, passed time.Duration) {
	busy, before := make(map[uint32]float64, len(now.GPUs)), make(map[uint32]int64, len(now.GPUs))
	for _, g := range now.GPUs {
		before[g.ID] = g.Busy

		// A new GPU has no previous busy time.
		if b, ok := s.before[g.ID]; ok && passed > 0 {
			busy[g.ID] = min(1, max(0, float64(g.Busy-b)/float64(passed)))
		}
	}
	s.before, s.busy, s.at = before, busy, time.Duration(now.Now)
}

// observeDepths takes a reading and records the queues' depths. Only ticks call it: readings on demand would make the
// samples uneven in time.
func (s *Scheduler) observeDepths() {
	type version struct{ name, version string }
	found := s.looks.freshValue()
	known := make(map[version]bool, len(found.Models))
	for _, m := range found.Models {
		known[version{m.Name, m.Version}] = true
		s.depth.WithLabelValues(m.Name, m.Version).Observe(float64(m.Queued))
	}

	// Remove the histograms of models that the engine has forgotten; they would be exported for ever.
	for _, m := range s.told {
		if !known[version{m.Name, m.Version}] {
			s.depth.DeleteLabelValues(m.Name, m.Version)
		}
	}
	s.told = found.Models
}
