package engine

import (
	"slices"

	"downbeat.dev/core/sched"
)

// modelCount counts one model's requests; its partition's lock guards it.
type modelCount struct {
	sent     uint64 // requests in batches sent, less those taken back
	ended    uint64 // requests that ended by an outcome after they were taken in
	served   uint64
	outcomes [sched.ReasonCount]uint64
	batches  uint64
	sizes    []uint64 // sizes[b] batches of b requests
}

func (c *modelCount) batch(size int) {
	for size >= len(c.sizes) {
		c.sizes = append(c.sizes, 0)
	}
	c.batches++
	c.sent += uint64(size)
	c.sizes[size]++
}

// Ran is a batch that has run, for timelines.
type Ran struct {
	GPU, Model, Size uint32
	Start, End       sched.Time // as reported, moved to this node's clock
}

const ringSize = 1024

// ring keeps the latest batches.
type ring struct {
	ran [ringSize]Ran
	n   uint64
}

func (r *ring) add(x Ran) {
	r.ran[r.n%ringSize] = x
	r.n++
}

func (r *ring) appendTo(out []Ran) []Ran {
	n := min(r.n, ringSize)
	for i := r.n - n; i < r.n; i++ {
		out = append(out, r.ran[i%ringSize])
	}
	return out
}

// ModelStats are the counters of one model since the engine started.
type ModelStats struct {
	ID            uint32
	Name, Version string
	Ready         bool
	Accepted      uint64                    // requests taken in
	Served        uint64                    // requests in batches done, less their failures
	Outcomes      [sched.ReasonCount]uint64 // requests that ended without an output
	Batches       uint64
	Sizes         []uint64 // Sizes[b] batches of b requests were sent
	Queued        int      // now
}

// GPUStats are the counters of one GPU since it joined.
type GPUStats struct {
	ID         uint32
	Name       string // backend/gpu
	SubCluster string
	Busy       int64 // ns of execution reported
	Batches    uint64
	Running    bool // a batch is under way
}

// LoadStats is the demand on one sub-cluster, for autoscaling.
type LoadStats struct {
	SubCluster string
	GPUs, Idle int
	Demand     float64 // GPUs that the estimated arrival rates need; Demand/GPUs near 1 is full
}

// Stats is a snapshot. Numbers of different models may be microseconds apart.
type Stats struct {
	Now       sched.Time
	Models    []ModelStats
	GPUs      []GPUStats
	Load      []LoadStats
	Recent    []Ran  // the latest batches of each partition, oldest first
	Frontends int    //
	Queued    int    // requests, of all models
	Unknown   uint64 // submissions for models that do not exist
	Strays    uint64 // Done messages for batches not under way
	Twins     uint64 // submissions of ids that were live
	Ctrl      sched.Duration
	Data      sched.Duration // network delay bounds in force
}

// Stats takes a snapshot. It takes every lock once, one after the other.
func (e *Engine) Stats() Stats {
	s := Stats{Now: e.clock.Now()}
	for _, m := range e.Models() {
		s.Models = append(s.Models, ModelStats{ID: m.ID, Name: m.Name, Version: m.Version, Ready: m.Ready})
	}
	for _, p := range e.parts {
		p.mu.Lock()
		for i := range s.Models {
			if id := s.Models[i].ID; e.partition(sched.ModelID(id)) == p && int(id) < len(p.models) {
				c := &p.models[id]
				m := &s.Models[i]
				m.Served, m.Outcomes, m.Batches = c.served, c.outcomes, c.batches
				m.Sizes, m.Queued = slices.Clone(c.sizes), p.s.Queued(sched.ModelID(id))
				m.Accepted = c.sent + c.ended + uint64(m.Queued)
			}
		}
		s.Recent = p.recent.appendTo(s.Recent)
		s.Queued += p.live
		s.Unknown += p.unknown
		s.Strays += p.strays
		s.Twins += p.twins
		p.mu.Unlock()
	}
	slices.SortStableFunc(s.Recent, func(a, b Ran) int { return int(a.End - b.End) })
	_ = e.manage(func() { e.reg.stats(&s) })
	return s
}

func (g *registry) stats(s *Stats) {
	s.Ctrl, s.Data = g.ctrl, g.data
	for _, f := range g.fronts {
		if f != nil {
			s.Frontends++
		}
	}
	for _, c := range g.clusters[1:] {
		if len(c.backends) == 0 {
			continue
		}
		name := c.name
		if name[0] == 0 {
			name = "" // made up from the models
		}
		for _, b := range c.backends {
			for _, u := range b.gpus {
				s.GPUs = append(s.GPUs, GPUStats{ID: uint32(u.id), Name: b.hello.Name + "/" + u.name, SubCluster: name,
					Busy: u.busy.Load(), Batches: u.batches.Load(), Running: u.batch.Load() != 0})
			}
		}
		r := g.e.ranker(c.number)
		r.mu.Lock()
		l := r.s.Load()
		r.mu.Unlock()
		s.Load = append(s.Load, LoadStats{SubCluster: name, GPUs: l.GPUs, Idle: l.Idle, Demand: l.Demand})
	}
}
