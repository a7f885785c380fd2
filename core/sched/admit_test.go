package sched

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	vocabulary "downbeat.dev/core/model"
)

// TestShortWayIsTheLongOne: Admit's fast path does what admit does, and a queue that hands its memory over behaves
// like one that is copied, after any calls. Where requests join unchecked, a waiting candidate's timer is never later
// than the time when it becomes ripe.
func TestShortWayIsTheLongOne(t *testing.T) {
	short := 0
	for seed := range uint64(40) {
		d := &lockstep{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 3))}
		d.o = Options{Prompt: float64(seed%3) / 4, Ctrl: Duration(d.rng.IntN(2)) * ms / 4}
		d.a, d.b = NewPartition(d.o), NewPartition(d.o)
		d.b.near = 0
		for id := range ModelID(lockstepModels) {
			d.addModel(id)
		}
		d.both(func(p *Partition) { p.SetGPUs(0, 0, 2) })
		for k := range 1500 {
			d.step()
			d.compareOutputs()
			if k%8 == 0 { // differences in state also show later
				d.compareModels()
			}
		}
		short += d.short
	}
	if short < 3_000 {
		t.Errorf("the short way was taken %d times: the test shows little", short)
	}
}

const lockstepModels = 3

// lockstep drives two Partitions that get the same calls; b takes all requests by the slow path.
type lockstep struct {
	t     *testing.T
	seed  uint64
	rng   *rand.Rand
	o     Options
	a, b  *Partition
	now   Time
	id    RequestID
	short int
}

func (d *lockstep) both(call func(*Partition)) {
	call(d.a)
	call(d.b)
}

func (d *lockstep) addModel(id ModelID) {
	p := line(d.t, time.Duration(1+d.rng.IntN(20))*100*time.Microsecond, time.Duration(1+d.rng.IntN(50))*100*time.Microsecond, 1+d.rng.IntN(64))
	m := Model{Profile: p, SLO: Duration(p.Exec(1)) + Duration(d.rng.IntN(200))*ms, SubCluster: uint32(id) % 2 * uint32(d.rng.IntN(2)), QueueMax: d.rng.IntN(2) * 40}
	if d.rng.IntN(3) == 0 {
		m.Rate = float64(d.rng.IntN(5000))
	}
	d.both(func(p *Partition) { _ = p.AddModel(d.now, id, m) }) // the id may be in use
}

func (d *lockstep) step() {
	id := ModelID(d.rng.IntN(lockstepModels))
	switch k := d.rng.IntN(60); {
	case k < 40:
		d.request(id)
	case k < 48:
		d.now = d.now.Add(Duration(d.rng.IntN(1 << d.rng.IntN(26))))
		if k < 45 { // otherwise a wake-up is late
			d.both(func(p *Partition) { p.Advance(d.now) })
		}
	case k < 53:
		g := Grant{Model: id, SubCluster: d.a.models[d.a.index[id]-1].sub, GPU: GPUID(k), Load: 1.5 * d.rng.Float64(),
			Early: d.rng.IntN(2) == 0, Growth: d.rng.Float64(), FreeAt: d.now.Add(Duration(d.rng.IntN(3)) * ms)}
		d.both(func(p *Partition) { p.Grant(d.now, g) })
	case k < 56:
		r := d.id - min(d.id, RequestID(d.rng.IntN(20)))
		d.both(func(p *Partition) { p.Cancel(d.now, id, r, 0) })
	case k == 56:
		n := d.rng.IntN(4) - 1
		d.both(func(p *Partition) { p.SetGPUs(d.now, uint32(n&1), max(0, n)) })
	case k == 57 && d.rng.IntN(4) == 0:
		ctrl, data := Duration(d.rng.IntN(1000))*1000, Duration(d.rng.IntN(100))*1000
		d.both(func(p *Partition) { p.SetNetworkDelay(d.now, ctrl, data) })
	case k == 58 && d.rng.IntN(10) == 0:
		d.both(func(p *Partition) { p.RemoveModel(d.now, id) })
		d.addModel(id)
	case k == 59:
		d.both(func(p *Partition) { p.CancelAll(d.now, id, 7) })
	}
}

// request offers one request, at a time that may go back, with a deadline that may be past or out of order and a
// priority that may be above 0.
func (d *lockstep) request(id ModelID) {
	d.id++
	m := &d.a.models[d.a.index[id]-1]
	r := Request{ID: d.id, Model: id, Deadline: d.now.Add(m.slo)}
	switch d.rng.IntN(12) {
	case 0:
		r.Deadline = d.now.Add(Duration(d.rng.Int64N(int64(2*m.slo))) - m.slo/2)
	case 1:
		r.Deadline = []Time{Never, -Never, d.now, 0}[d.rng.IntN(4)]
	case 2:
		r.Priority = Priority(d.rng.IntN(3))
	case 3:
		r.Model = lockstepModels + ModelID(d.rng.IntN(2))*IDLimit
	case 4:
		r.Origin = 7
	case 5:
		r.Deadline = m.q.last
	}
	now := d.now - Time(d.rng.IntN(20)/19*1000)
	if r.Model == id && m.q.n < m.q.quiet && r.Deadline >= m.q.last && r.Deadline.Sub(max(now, d.a.now)) >= m.soonest && r.Priority == 0 && !m.q.full() {
		d.short++
	}
	why, other := d.a.Enqueue(now, r), vocabulary.ReasonNone
	if m, at := d.b.find(r.Model); m == nil {
		d.b.clock(now)
		other = d.b.refuse(vocabulary.UnknownModel)
	} else {
		var e *Request
		if e, other = d.b.admit(d.b.clock(now), m, at, r.Deadline, r.Priority); e != nil {
			*e = r
		}
	}
	if why != other {
		d.t.Fatalf("seed %d: request %+v: %v, by the long way %v", d.seed, r, why, other)
	}
}

func (d *lockstep) compareOutputs() {
	a, b := *d.a.Outputs(), *d.b.Outputs()
	for _, o := range []*Outputs{&a, &b} { // memory may hold anything
		o.memory, o.Batches = memory{}, slices.Clone(o.Batches)
		for i := range o.Batches {
			o.Batches[i].piece = nil
		}
	}
	if !reflect.DeepEqual(a, b) || d.a.Stats() != d.b.Stats() || d.a.NextWake() != d.b.NextWake() {
		d.t.Fatalf("seed %d at %d: outputs %+v, by the long way %+v", d.seed, d.now, a, b)
	}
	d.both(func(p *Partition) { p.Outputs().Reset() })
	for i := range d.a.models {
		if x := &d.a.models[i]; x.state == waiting && x.timer > max(d.a.now, x.ripeAt(d.a.now)) {
			d.t.Fatalf("seed %d at %d: the timer is set to %d, the candidate becomes ripe at %d: %+v", d.seed, d.a.now, x.timer, x.ripeAt(d.a.now), x)
		}
	}
}

// compareModels compares the whole state of both.
func (d *lockstep) compareModels() {
	for i := range d.a.models {
		x, y := d.a.models[i], d.b.models[i]
		for k := range x.q.len() {
			if *x.q.at(k) != *y.q.at(k) {
				d.t.Fatalf("seed %d at %d: place %d holds %+v, by the long way %+v", d.seed, d.now, k, *x.q.at(k), *y.q.at(k))
			}
		}
		for _, m := range []*model{&x, &y} { // the position of a queue in its memory may differ
			m.prof, m.q.buf, m.q.head, m.q.since = nil, nil, 0, m.q.came()
		}
		if !reflect.DeepEqual(x, y) {
			d.t.Fatalf("seed %d at %d: model %+v, by the long way %+v", d.seed, d.now, x, y)
		}
	}
}
