package sched

import (
	"errors"
	"fmt"

	"downbeat.dev/core/profile"
)

// Limits and defaults.
const (
	IDLimit         = 1 << 20          // model and GPU ids are below this: tables are dense
	SubClusterLimit = 1 << 16          // sub-cluster numbers are below this
	QueueMaxDefault = 1 << 16          // queued requests per model
	SLOLimit        = 3600_000_000_000 // an hour in ns
	RateLimit       = 1e9              // requests/s of one model
)

// Errors of the management calls; wrapped with the number at fault.
var (
	ErrKnown   = errors.New("already known")
	ErrUnknown = errors.New("unknown")
)

// Options configure a Partition, a Ranker or a Scheduler.
type Options struct {
	// Number is the partition's number within its engine. It makes BatchIDs unique: they are
	// Number<<40 + 1, 2, 3…
	Number uint16
	// Ctrl and Data are d_ctrl and d_data (appendix C): a batch of b must be sent Ctrl + b·Data
	// before it starts.
	Ctrl, Data Duration
	// Prompt is the demand, as a share of a sub-cluster's GPUs, below which a candidate gets an
	// idle GPU at once instead of waiting to grow: answers come early and survive a host that
	// stumbles, while GPU time is plentiful. 0: always defer, which keeps the busy fraction
	// proportional to load (§4.4).
	Prompt float64
	// Memory is where a Partition gets memory for n requests, a power of two, of any content; it keeps
	// what it got. nil: the heap.
	Memory func(n int) []Request
}

// Model is what a Partition must know of a model.
type Model struct {
	Profile    *profile.Profile
	SLO        Duration // the usual budget of a request; deadlines are the requests' own
	SubCluster uint32   // whose GPUs serve it
	QueueMax   int      // 0: QueueMaxDefault
	Rate       float64  // the arrival rate in requests/s when it is known; 0: estimated online
}

func (m *Model) check(id ModelID) error {
	switch {
	case id >= IDLimit:
		return fmt.Errorf("sched: model %d: want an id below %d", id, IDLimit)
	case m.Profile == nil:
		return fmt.Errorf("sched: model %d: profile is missing", id)
	case m.SubCluster >= SubClusterLimit:
		return fmt.Errorf("sched: model %d: sub-cluster %d, want one below %d", id, m.SubCluster, SubClusterLimit)
	case !(m.Rate >= 0 && m.Rate <= RateLimit):
		return fmt.Errorf("sched: model %d: rate %v, want 0 to %v requests/s", id, m.Rate, float64(RateLimit))
	case m.QueueMax < 0 || m.QueueMax > 1<<30:
		return fmt.Errorf("sched: model %d: queue maximum %d, want 0 to %d", id, m.QueueMax, 1<<30)
	case m.SLO < Duration(m.Profile.Exec(1)) || m.SLO > SLOLimit:
		return fmt.Errorf("sched: model %d: SLO %d ns, want at least ℓ(1) = %d ns and at most an hour", id, m.SLO, m.Profile.Exec(1))
	}
	return nil
}

// The states of a model's candidate.
const (
	none    uint8 = iota // nothing queued
	waiting              // the timer says when it becomes ripe
	ripe                 // the ranker has been asked for a GPU; the timer says when the head expires
)

// model is one model of a Partition. What every request reads comes first, in one cache line.
type model struct {
	q       queue
	last    Time     // the latest arrival
	soonest Duration // lead[1]

	gaps     gaps
	lead     []Duration // lead[b] = Ctrl + b·Data + ℓ(b)
	timer    Time       // waiting: when it is set to; not later than the candidate becomes ripe
	sub      uint32
	queueMax int32
	ranked   int32 // queued with a priority above 0
	max      int32 // largest batch
	state    uint8
	live     bool
	single   bool // it gains next to nothing by batching

	pace    Pace
	rate    rate
	id      ModelID
	seq     uint32
	debt    Duration   // falls with drops and rises with requests served; see owe
	grantAt Time       // the latest batch
	exec    []Duration // exec[b] = ℓ(b), 0 ≤ b ≤ max+1; exec[0] = 0
	slo     Duration
	prof    *profile.Profile
	load    float64  // u as of the latest grant
	offered int32    // waiting: the size that the ranker knows, 0: none
	budget  Duration // what requests usually have on arrival, at most slo
	margin  Duration // how long before its frontrun a candidate is ripe; see hurry
	_       [24]byte // to a multiple of the line
}

// Stats count what a Partition did since it was made.
type Stats struct {
	Enqueued, Batches, Batched, Canceled uint64
	Dropped                              [ReasonCount]uint64 // drops and rejections by reason
	ClockBack                            uint64              // calls whose now was before an earlier one; now was taken as that
}

// Partition holds the queues and candidates of some models: Symphony's ModelThread. It asks
// Rankers for GPUs and answers their Grants. Not safe for concurrent use.
type Partition struct {
	o      Options
	now    Time
	models []model
	free   []int32 // unused places in models
	index  []int32 // index[ModelID] = place+1, 0: unknown
	gpus   []int32 // gpus[sub-cluster] = GPUs there
	tables map[*profile.Profile]*tables
	timers *wheel
	due    []int32
	batch  BatchID
	near   int // models whose queues stay in a core's cache
	out    Outputs
	stats  Stats
}

// NewPartition returns a Partition without models. Until SetGPUs tells of GPUs, requests are
// refused with NoBackend.
func NewPartition(o Options) *Partition {
	return &Partition{o: o, tables: map[*profile.Profile]*tables{}, timers: newWheel(0), batch: BatchID(o.Number) << 40, near: nearModels,
		out: Outputs{memory: memory{more: o.Memory}}}
}

// AddModel makes a model known. It refuses ids in use and models that no request could use.
func (p *Partition) AddModel(now Time, id ModelID, m Model) error {
	now = p.clock(now)
	if err := m.check(id); err != nil {
		return err
	}
	for int(id) >= len(p.index) {
		p.index = append(p.index, 0)
	}
	if p.index[id] != 0 {
		return fmt.Errorf("sched: model %d: %w", id, ErrKnown)
	}
	if n := len(p.free); n == 0 {
		p.models = append(p.models, model{})
		p.free = append(p.free, int32(len(p.models)-1))
		p.timers.grow(len(p.models))
	}
	at := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.index[id] = at + 1
	d := &p.models[at]
	*d = model{id: id, sub: m.SubCluster, live: true, max: int32(m.Profile.Max()), queueMax: int32(m.QueueMax),
		slo: m.SLO, budget: m.SLO, prof: m.Profile, q: queue{buf: d.q.buf}}
	if d.queueMax == 0 {
		d.queueMax = QueueMaxDefault
	}
	p.read(d)
	d.last, d.grantAt = now, now
	d.rate.start(now, d, m.Rate)
	return nil
}

// tables are what a profile says, in the form that decisions read. Models that share a Profile share
// them, and so do requests' trips to memory.
type tables struct {
	exec, lead []Duration
	models     int
}

// read gives a model its profile's tables.
func (p *Partition) read(m *model) {
	t := p.tables[m.prof]
	if t == nil {
		t = &tables{exec: make([]Duration, m.max+2), lead: make([]Duration, m.max+2)}
		for b := 1; b < len(t.exec); b++ {
			t.exec[b] = Duration(m.prof.Exec(b))
		}
		p.tables[m.prof] = t
	}
	t.models++
	m.exec, m.lead = t.exec, t.lead
	m.leads(p.o)
}

func (m *model) leads(o Options) {
	for b := range m.lead {
		m.lead[b] = m.exec[b] + o.Ctrl + Duration(b)*o.Data
	}
	m.soonest = m.lead[1]
}

// RemoveModel forgets a model; its queued requests are dropped with UnknownModel.
func (p *Partition) RemoveModel(now Time, id ModelID) {
	p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return
	}
	for i := range m.q.len() {
		p.drop(m.q.at(i), UnknownModel)
	}
	m.q.pop(m.q.len(), &m.ranked)
	m.seq++
	p.out.Candidates = append(p.out.Candidates, Candidate{Model: id, SubCluster: m.sub, Seq: m.seq, Gone: true})
	p.timers.off(at)
	if t := p.tables[m.prof]; t.models > 1 {
		t.models--
	} else {
		delete(p.tables, m.prof)
	}
	m.live = false
	p.index[id] = 0
	p.free = append(p.free, at)
}

// SetGPUs tells how many GPUs a sub-cluster has. With none, new requests are refused with
// NoBackend; those queued stay until they can no longer be served.
func (p *Partition) SetGPUs(now Time, subCluster uint32, n int) {
	p.clock(now)
	if subCluster >= SubClusterLimit {
		return
	}
	for int(subCluster) >= len(p.gpus) {
		p.gpus = append(p.gpus, 0)
	}
	p.gpus[subCluster] = int32(max(0, n))
	for i := range p.models {
		if m := &p.models[i]; n <= 0 && m.sub == subCluster {
			m.q.calm = 0 // the next request is looked at
		}
	}
}

// deserted says whether no GPU serves the model.
func (p *Partition) deserted(m *model) bool {
	return int(m.sub) >= len(p.gpus) || p.gpus[m.sub] == 0
}

// SetNetworkDelay replaces d_ctrl and d_data. Negative values count as 0.
func (p *Partition) SetNetworkDelay(now Time, ctrl, data Duration) {
	now = p.clock(now)
	p.o.Ctrl, p.o.Data = max(0, ctrl), max(0, data)
	for i := range p.models {
		if m := &p.models[i]; m.live {
			m.leads(p.o)
			if m.state != none {
				m.state = none
				p.refresh(now, m, int32(i))
			}
		}
	}
}

// Enqueue takes a request in; ReasonNone means that it is queued. Any other reason is its
// outcome: it is not reported again as a Drop.
func (p *Partition) Enqueue(now Time, r Request) Reason {
	e, why := p.Admit(now, r.Model, r.Deadline, r.Priority)
	if e != nil {
		*e = r
	}
	return why
}

// Admit is Enqueue for a driver in a hurry: it returns where the request stands in its queue, for
// the driver to write the fields that are not arguments. Those hold anything before; the place is
// valid until the next call. nil: the request is refused.
func (p *Partition) Admit(now Time, id ModelID, deadline Time, pr Priority) (*Request, Reason) {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return nil, p.refuse(UnknownModel)
	}
	q := &m.q
	if q.n >= q.calm || deadline < q.last || deadline.Sub(now) < m.soonest || pr > 0 || q.full() {
		return p.admit(now, m, at, deadline, pr)
	}
	// Most requests: one more behind those queued, which changes nothing else.
	m.arrive(now)
	p.stats.Enqueued++
	r := q.at(int(q.n))
	q.n++
	q.last = deadline
	r.Deadline, r.Model, r.Priority = deadline, id, 0
	return r, ReasonNone
}

// admit is the rest of Admit.
func (p *Partition) admit(now Time, m *model, at int32, deadline Time, pr Priority) (*Request, Reason) {
	look := m.q.n >= m.q.calm
	if look && p.deserted(m) {
		return nil, p.refuse(NoBackend)
	}
	m.arrive(now)
	if deadline < now || deadline.Sub(now) < m.soonest {
		m.q.since--
		if deadline <= now {
			return nil, p.refuse(DeadlinePast)
		}
		return nil, p.refuse(DeadlineCannotBeMet)
	}
	if look && m.q.n >= m.queueMax && !p.makeRoom(m, pr) {
		m.q.since--
		return nil, p.refuse(QueueFull)
	}
	p.stats.Enqueued++
	if m.q.full() {
		m.q.room(&p.out.memory)
	}
	r, place := m.q.open(deadline)
	r.Model, r.Priority = m.id, pr
	if pr > 0 {
		m.ranked++
	}
	if place == 0 {
		m.timer = Never // an earlier head: the timer is to be set anew
		p.refresh(now, m, at)
	} else if look && m.state != ripe {
		p.refresh(now, m, at)
	}
	return r, ReasonNone
}

// makeRoom gives up a queued request of a lower priority than pr.
func (p *Partition) makeRoom(m *model, pr Priority) bool {
	if pr == 0 {
		return false
	}
	i := m.q.lowest()
	if m.q.at(i).Priority >= pr {
		return false
	}
	p.drop(m.q.at(i), QueueFull)
	m.q.remove(i, &m.ranked)
	return true
}

// Holds reports whether a request is queued. It looks through the model's queue.
func (p *Partition) Holds(id ModelID, r RequestID, origin uint32) bool {
	m, _ := p.find(id)
	return m != nil && m.q.find(r, origin) >= 0
}

// Cancel withdraws a request. It returns true when the request was still queued: then it ends here
// and no output speaks of it. It looks through the model's queue.
func (p *Partition) Cancel(now Time, id ModelID, r RequestID, origin uint32) bool {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return false
	}
	i := m.q.find(r, origin)
	if i < 0 {
		return false
	}
	m.q.remove(i, &m.ranked)
	p.stats.Canceled++
	p.settle(now, m, at)
	return true
}

// CancelAll withdraws an origin's requests for a model, calling each with those that were queued.
func (p *Partition) CancelAll(now Time, id ModelID, origin uint32, each func(*Request)) {
	now = p.clock(now)
	m, at := p.find(id)
	if m == nil {
		return
	}
	kept := 0
	for i := range m.q.len() {
		r := m.q.at(i)
		if r.Origin == origin {
			each(r)
			p.stats.Canceled++
			if r.Priority > 0 {
				m.ranked--
			}
			continue
		}
		*m.q.at(kept) = *r
		kept++
	}
	if gone := m.q.len() - kept; gone > 0 {
		m.q.cut(gone)
		p.settle(now, m, at)
	}
}

// Grant forms the model's batch for a GPU, or gives the GPU back unused. The answer is in
// Outputs.Frees, followed by the model's next Candidate.
func (p *Partition) Grant(now Time, g Grant) {
	now = p.clock(now)
	f := Free{Model: g.Model, SubCluster: g.SubCluster, GPU: g.GPU, Epoch: g.Epoch, FreeAt: g.FreeAt}
	m, at := p.find(g.Model)
	if m == nil || m.sub != g.SubCluster { // gone, or back in another sub-cluster
		p.out.Frees = append(p.out.Frees, f)
		return
	}
	m.rate.update(now, m)
	m.load = g.Load
	if b := p.form(now, m, g); b > 0 {
		m.grantAt = now
		start := p.start(now, b, g.FreeAt)
		f.Batch, f.Start, f.FreeAt = p.batch, start, start.Add(m.exec[b])
	}
	p.out.Frees = append(p.out.Frees, f)
	m.state = none
	p.settle(now, m, at)
}

// Advance acts on the timers due by now.
func (p *Partition) Advance(now Time) {
	now = p.clock(now)
	p.due = p.timers.advance(now, p.due[:0])
	for _, at := range p.due {
		m := &p.models[at]
		switch m.state {
		case none:
			p.decay(now, m, at)
		case waiting:
			m.timer = Never
			p.refresh(now, m, at)
		case ripe:
			p.settle(now, m, at)
		}
	}
}

// NextWake returns when Advance must be called at the latest; it may be early, never late.
func (p *Partition) NextWake() Time { return p.timers.next() }

// Release takes back what Batch.Keep gave.
func (p *Partition) Release(piece []Request) { p.out.memory.give(piece) }

// Outputs returns what is to be done since the last Reset.
func (p *Partition) Outputs() *Outputs { return &p.out }

// Stats returns the counters.
func (p *Partition) Stats() Stats { return p.stats }

// Queued returns how many requests of a model are queued.
func (p *Partition) Queued(id ModelID) int {
	if m, _ := p.find(id); m != nil {
		return m.q.len()
	}
	return 0
}

func (p *Partition) find(id ModelID) (*model, int32) {
	if int(id) >= len(p.index) || p.index[id] == 0 {
		return nil, -1
	}
	at := p.index[id] - 1
	return &p.models[at], at
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

func (p *Partition) refuse(why Reason) Reason {
	p.stats.Dropped[why]++
	return why
}

func (p *Partition) drop(r *Request, why Reason) {
	p.stats.Dropped[why]++
	p.out.Drops = append(p.out.Drops, Drop{*r, why})
}
