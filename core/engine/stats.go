package engine

import (
	"slices"

	"downbeat.dev/core/model"
	"downbeat.dev/core/plan"
	"downbeat.dev/core/sched"
)

// modelCount counts one model's requests; its partition's lock guards it. The counts of each batch lie in the first cache line.
type modelCount struct {
	sent     uint64 // requests in batches sent, except those taken back
	served   uint64
	batches  uint64
	sizes    []sizeCount // sizes[b]: batches of b requests
	ended    uint64      // accepted requests that ended by an outcome
	_        uint64
	outcomes [model.ReasonCount]uint64
	dropped  [ruleCount - ruleFirst]uint64 // those with DeadlineCannotBeMet, by rule
	_        [8]byte
}

// sizeCount counts the batches of one size.
type sizeCount struct {
	sent uint64
	ran  RanStats // those of them that are done
}

// RanStats counts the completed batches of one size.
type RanStats struct {
	Batches uint64
	Exec    int64 // their total ns on the GPU, as reported
}

// countSent records that a batch of size requests was sent.
func (c *modelCount) countSent(size int) {
	for size >= len(c.sizes) {
		c.sizes = append(c.sizes, sizeCount{})
	}
	c.batches++
	c.sent += uint64(size)
	c.sizes[size].sent++
}

// countRun records that a batch of size requests, which was sent before, took exec ns.
func (c *modelCount) countRun(size int, exec int64) {
	for size >= len(c.sizes) { // the model was made anew since
		c.sizes = append(c.sizes, sizeCount{})
	}
	ran := &c.sizes[size].ran
	ran.Batches++
	ran.Exec += exec
}

// Ran is a completed batch, for timelines.
type Ran struct {
	GPU, Model, Size uint32
	Start, End       sched.Time // as reported, converted to this node's clock
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

// appendSteps appends the latest steps of spare work that ran on a ranker's GPUs.
func (r *ranker) appendSteps(out []Ran) []Ran {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.steps == nil {
		return out
	}
	return r.steps.appendTo(out)
}

// ModelStats are the counters of one model since the engine started.
type ModelStats struct {
	ID            uint32
	Name, Version string
	Ready         bool
	Accepted      uint64                    // requests accepted
	Served        uint64                    // requests in batches done, less their failures
	Outcomes      [model.ReasonCount]uint64 // requests that ended without an output
	Batches       uint64
	Sizes         []uint64   // Sizes[b]: batches of b requests sent
	Ran           []RanStats // Ran[b]: batches of b requests that are done
	Queued        int        // now
	// Variants counts, for a family, the requests in batches by the id of the variant's model.
	Variants map[uint32]uint64
}

// GPUStats are the counters of one GPU since it joined.
type GPUStats struct {
	ID         uint32
	Name       string // backend/gpu
	Backend    string
	SubCluster string
	Busy       int64 // ns of execution reported
	Batches    uint64
	Running    bool // a batch is in flight
	Held       bool // it is held back, or has been and has not run a sound batch since
}

// LoadStats is the demand on one sub-cluster, for autoscaling.
type LoadStats struct {
	SubCluster string
	Pool       string // the operator's name, which several sub-clusters may share; empty: none
	GPUs, Idle int
	Models     int              // that it serves; 0: its GPUs are unused
	Demand     float64          // GPUs that the estimated arrival rates need; Demand/GPUs near 1 is full
	Advice     plan.Advice      // of its Scaler; zero in the first second, and while another scheduler leads
	Spare      sched.SpareStats // steps of spare work on its GPUs since it exists
}

// Stats is a snapshot. Numbers of different models may be microseconds apart.
type Stats struct {
	Now        sched.Time
	Models     []ModelStats
	GPUs       []GPUStats
	Load       []LoadStats
	Recent     []Ran  // the latest batches of each partition, oldest first
	Steps      []Ran  // the latest steps of spare work of each sub-cluster, unordered; their Model and Size are 0
	Frontends  int    //
	Queued     int    // requests, of all models
	Unknown    uint64 // submissions for models that do not exist
	Strays     uint64 // Done messages for batches not in flight
	Duplicates uint64 // submissions of ids that were queued already
	Ctrl       sched.Duration
	Data       sched.Duration // network delay bounds in force
	Plan       uint64         // number of the latest plan; 0: none is known
	Epochs     EpochStats
}

// Stats takes a snapshot. It takes every lock once, one after another.
func (e *Engine) Stats() Stats {
	s := Stats{Now: e.clock.Now()}
	infos := e.Models()
	for _, m := range infos {
		s.Models = append(s.Models, ModelStats{ID: m.ID, Name: m.Name, Version: m.Version, Ready: m.Ready})
	}

	// A family's counters are the sums over its classes, including those whose floors are no longer announced.
	classes := map[uint32][]uint32{}
	_ = e.runInRegistry(func() {
		for _, f := range e.reg.families {
			if len(f.classes) > 1 {
				classes[f.classes[0]] = slices.Clone(f.classes[1:])
			}
		}
	})

	for _, p := range e.parts {
		p.mu.Lock()
		for i := range s.Models {
			m := &s.Models[i]
			p.addCounts(e, m, m.ID)
			for _, id := range classes[m.ID] {
				p.addCounts(e, m, id)
			}
		}
		s.Recent = p.recent.appendTo(s.Recent)
		s.Queued += p.live
		s.Unknown += p.unknown
		s.Strays += p.strays
		s.Duplicates += p.duplicates
		p.mu.Unlock()
	}

	// The partitions' batches are merged into one order.
	slices.SortStableFunc(s.Recent, func(a, b Ran) int { return int(a.End - b.End) })
	_ = e.runInRegistry(func() { e.reg.stats(&s) })
	return s
}

// Queued returns how many requests of a service are queued; 0 if the service is unknown. It is cheaper than Stats.
func (e *Engine) Queued(id uint32) int {
	p := e.partition(sched.ModelID(id))
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.s.Queued(sched.ModelID(id))
}

// addCounts adds the counters of a service, if this partition has it. mu is held.
func (p *partition) addCounts(e *Engine, m *ModelStats, id uint32) {
	if e.partition(sched.ModelID(id)) != p || int(id) >= len(p.models) {
		return
	}

	// A request that was accepted is queued, was sent in a batch, or has ended.
	c, queued := &p.models[id], p.s.Queued(sched.ModelID(id))
	m.Served, m.Batches, m.Queued = m.Served+c.served, m.Batches+c.batches, m.Queued+queued
	m.Accepted += c.sent + c.ended + uint64(queued)
	for why, n := range c.outcomes {
		m.Outcomes[why] += n
	}

	// Sums grow to the largest batch of any partition.
	for size := range c.sizes {
		x := &c.sizes[size]
		for x.sent > 0 && size >= len(m.Sizes) {
			m.Sizes = append(m.Sizes, 0)
		}
		for x.ran.Batches > 0 && size >= len(m.Ran) {
			m.Ran = append(m.Ran, RanStats{})
		}
		if size < len(m.Sizes) {
			m.Sizes[size] += x.sent
		}
		if size < len(m.Ran) {
			m.Ran[size].Batches += x.ran.Batches
			m.Ran[size].Exec += x.ran.Exec
		}
	}

	// A family also counts which of its variants answered.
	if a := p.answersOf(id); a != nil {
		for _, c := range a.counts {
			if m.Variants == nil {
				m.Variants = map[uint32]uint64{}
			}
			m.Variants[c.model] += c.requests
		}
	}
}

// stats adds what the registry knows: connected peers, GPUs and loads.
func (g *registry) stats(s *Stats) {
	s.Ctrl, s.Data = g.ctrl, g.data
	s.Plan, s.Epochs = g.planNumber(), g.epochs.stats
	for _, f := range g.fronts {
		if f != nil {
			s.Frontends++
		}
	}

	for _, c := range g.clusters[1:] {
		if len(c.gpus) == 0 {
			continue
		}
		for _, u := range c.gpus {
			s.GPUs = append(s.GPUs, GPUStats{ID: uint32(u.id), Name: u.b.name + "/" + u.name, Backend: u.b.name, SubCluster: c.label,
				Busy: u.busy.Load(), Batches: u.batches.Load(), Running: u.batch.Load() != 0, Held: u.sick.Load()})
		}
		s.Load = append(s.Load, g.loadStats(c))
		s.Steps = g.e.ranker(c.number).appendSteps(s.Steps)
	}
}
