package sched

import (
	vocabulary "downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// Stats are a Partition's counters since its creation.
type Stats struct {
	Enqueued, Batches, Batched, Canceled uint64
	Dropped                              [vocabulary.ReasonCount]uint64 // drops and rejections by reason
	ClockBack                            uint64                         // calls with an earlier now than before
	Searched                             uint64                         // requests read in searches
}

// Partition holds the queues and candidates of some models: Symphony's ModelThread. It asks Rankers for GPUs and
// answers their Grants. Not safe for concurrent use.
type Partition struct {
	o      Options
	now    Time
	models []model
	free   []int32  // unused places in models
	index  []int32  // index[ModelID] = place+1, 0: unknown
	seqs   []uint64 // seqs[ModelID] = seq when the model was removed: late messages stay older than new ones
	gpus   []int32  // gpus[sub-cluster] = GPUs there
	prices []price  // by sub-cluster
	tables map[*profile.Profile]*tables
	timers *wheel
	due    []int32
	sweeps []sweep // the first is under way
	batch  BatchID
	near   int // models whose queues stay in a core's cache
	out    Outputs
	stats  Stats

	avoiding map[ModelID]avoidance // see avoids
	aside    []Request             // see setAside

	early   int                     // requests of all models whose input is not there yet: see AdmitEarly
	earlyOf map[ModelID]*earlyQueue // nil: there never was one
	joins   *wheel                  // by place in models: when the model's next early request joins its queue; nil as above

	forecasting   bool // Rankers have spare work
	lastForecasts []lastForecast
	crowds        []crowd  // by sub-cluster
	members       []member // by place in models
	places        *places  // nil: no service has several homes
	forecastSeq   uint64
}

// NewPartition returns a Partition without models. Until SetGPUs reports GPUs, requests are refused with NoBackend.
func NewPartition(o Options) *Partition {
	return &Partition{o: o, tables: map[*profile.Profile]*tables{}, timers: newWheel(0), batch: BatchID(o.Number) << 40, near: nearModels,
		out: Outputs{memory: memory{more: o.Memory}}}
}

// SetGPUs sets the number of GPUs in a sub-cluster. With none, new requests are refused with NoBackend; queued ones
// stay until they can no longer be served.
func (p *Partition) SetGPUs(now Time, subCluster uint32, n int) {
	now = p.clock(now)
	if subCluster >= SubClusterLimit {
		return
	}

	for int(subCluster) >= len(p.gpus) {
		p.gpus = append(p.gpus, 0)
	}

	before := p.gpus[subCluster]
	p.gpus[subCluster] = int32(max(0, n))
	p.judgeCrowd(subCluster)

	// Queues depend only on whether there are any GPUs.
	for i := range p.models {
		m := &p.models[i]
		switch {
		case !m.live:
		case m.family != nil && (before == 0) != (n <= 0):
			p.reconsiderHomes(now, m, int32(i), subCluster)
		case n <= 0 && m.sub == subCluster:
			m.q.quiet = 0 // the next request is checked
		}
	}
}

// hasNoGPUs reports whether no GPU serves the model.
func (p *Partition) hasNoGPUs(m *model) bool {
	if m.family != nil {
		return !m.family.hasGPUs
	}
	return !p.hasGPUs(m.sub)
}

// hasGPUs reports whether a sub-cluster has GPUs.
func (p *Partition) hasGPUs(sub uint32) bool { return int(sub) < len(p.gpus) && p.gpus[sub] > 0 }

// SetNetworkDelay replaces d_ctrl and d_data. Negative values count as 0.
func (p *Partition) SetNetworkDelay(now Time, ctrl, data Duration) {
	now = p.clock(now)
	p.o.Ctrl, p.o.Data = max(0, ctrl), max(0, data)
	for i := range p.models {
		if m := &p.models[i]; m.live {
			m.renewLeads(p.o)

			// Earlier offers were computed with the former delays.
			if m.state != none {
				m.state = none
				p.refreshCandidate(now, m, int32(i))
			}
		}
	}
}

// Grant forms the model's batch for a GPU, or returns the GPU unused. The answer is in Outputs.Frees, followed by the
// model's next Candidate.
func (p *Partition) Grant(now Time, g Grant) {
	now = p.clock(now)
	f := Free{Model: g.Model, SubCluster: g.SubCluster, GPU: g.GPU, Epoch: g.Epoch, FreeAt: g.FreeAt}
	m, at := p.find(g.Model)

	var h *home
	if m != nil && m.family != nil {
		h = m.family.homeIn(g.SubCluster)
	}
	if m == nil || h == nil && (m.family != nil || m.sub != g.SubCluster) { // removed, or back in another sub-cluster
		p.out.Frees = append(p.out.Frees, f)
		return
	}

	// Update the rate first: target and variant follow from it, and the batch from these.
	if m.rate.update(now, m) {
		p.countMember(m, at)
	}
	m.load = g.Load
	if p.avoids(now, m) {
		p.setAside(m, g.Group)
	}

	// A plain model has no choice of variant; a family has one in each home.
	if p.formBatch(now, m, h, g) {
		m.grantAt = now
		b := &p.out.Batches[len(p.out.Batches)-1]
		f.Batch, f.Start, f.FreeAt = b.ID, b.ExecAt, b.Finish
	}
	p.out.Frees = append(p.out.Frees, f)

	// Requests that avoid the GPU rejoin after its batch was formed.
	if len(p.aside) > 0 {
		p.putBack(now, m, g.Group, f.Batch != 0)
	}

	// The grant consumed the candidate: offer the rest anew.
	m.state = none
	p.expectAgain(at)
	p.settleCandidate(now, m, at)
}

// formBatch forms a batch for the granted service by its kind: plain, with variants, or with several homes.
func (p *Partition) formBatch(now Time, m *model, h *home, g Grant) bool {
	switch {
	case h == nil:
		return p.formPlain(now, m, g)
	case len(m.family.homes) == 1:
		return p.formVariant(now, m, h, g)
	}
	return p.formPlaced(now, m, h, g)
}

// Advance handles the timers due by now.
func (p *Partition) Advance(now Time) {
	now = p.clock(now)
	p.stepSweep(now)
	if p.early > 0 {
		p.joinReady(now)
	}

	p.due = p.timers.advance(now, p.due[:0])
	for _, at := range p.due {
		m := &p.models[at]
		switch m.state {
		case none:
			p.decayRate(now, m, at)
		case waiting:
			m.timer = Never
			if m.family != nil && m.q.first() < now.Add(m.soonest) {
				p.settleCandidate(now, m, at) // no home was asked for a GPU in time
				continue
			}
			p.refreshCandidate(now, m, at)
		case ripe:
			p.settleCandidate(now, m, at)
		}
	}
	if p.places != nil {
		// Time alone makes a tentative schedule stale: batches that it placed for later become due.
		if p.places.due <= now {
			p.places.stale = true
		}
		p.Place(now)
	}
}

// NextWake returns the latest time for the next Advance; it may be early, never late.
func (p *Partition) NextWake() Time {
	// A sweep continues at once, one bounded step at a time.
	if len(p.sweeps) > 0 {
		return p.now
	}
	at := p.timers.next()
	if p.early > 0 {
		at = min(at, p.joins.next())
	}
	if p.places == nil {
		return at
	}
	return min(at, p.places.due)
}

// Release takes back a piece that Batch.Keep returned.
func (p *Partition) Release(piece []Request) { p.out.memory.give(piece) }

// Outputs returns the pending actions since the last Reset.
func (p *Partition) Outputs() *Outputs { return &p.out }

// Stats returns the counters.
func (p *Partition) Stats() Stats { return p.stats }

// Queued returns the number of a model's queued requests, early ones included.
func (p *Partition) Queued(id ModelID) int {
	if m, _ := p.find(id); m != nil {
		return m.q.len() + int(m.queueMax-p.room(m))
	}
	return 0
}

func (p *Partition) find(id ModelID) (*model, int32) {
	if int(id) < len(p.index) {
		if at := p.index[id] - 1; at >= 0 {
			return &p.models[at], at
		}
	}
	return nil, -1
}

// clock keeps time from going back: an earlier now counts as the latest one.
func (p *Partition) clock(now Time) Time {
	if now < p.now {
		p.stats.ClockBack++
		return p.now
	}
	p.now = now
	return now
}
