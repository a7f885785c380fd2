package sched

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/invariants"
	vocabulary "downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// tape reads the calls of a fuzz run from bytes; after its end all values are 0.
type tape struct{ b []byte }

func (t *tape) more() bool { return len(t.b) > 0 }

func (t *tape) byte() int {
	if len(t.b) == 0 {
		return 0
	}
	x := t.b[0]
	t.b = t.b[1:]
	return int(x)
}

func (t *tape) n(n int) int { return t.byte() % n }

// span returns −64 ms to 63.5 ms, mostly small.
func (t *tape) span() Duration { return Duration(int8(t.byte())) * Duration(t.n(5)+1) * 100_000 }

const (
	fuzzModels = 6
	fuzzGPUs   = 10
	fuzzSubs   = 3
)

// ledger follows a scheduler's outputs. The observer checks what any scheduler must keep; the ledger checks the rest.
type ledger struct {
	invariants.Observer
	t          *testing.T
	now        Time // the driver's clock
	told       Time // the partition's time: it must not go back
	ctrl, data Duration
	live       map[RequestID]*living
	twice      map[RequestID]bool // ids that were live more than once: the plan does not distinguish them
	models     map[ModelID]Service
	families   bool // services are families as often as models
	gpus       map[GPUID]*fuzzGPU
	sent       []Batch // all of them, without requests
	nextID     RequestID
	hash       uint64
	early      map[RequestID]Time // when an early request joins its queue
}

// noteEarly records from when a request may be in a batch.
func (l *ledger) noteEarly(r Request, from Time, why vocabulary.Reason) {
	if why == vocabulary.ReasonNone {
		l.early[r.ID] = from
	}
}

type fuzzGPU struct {
	invariants.GPU
	group Groups
	sub   uint32
}

// living is a request's life, and the requests of its id that are queued.
type living struct {
	invariants.Life
	requests []Request
}

func newLedger(t *testing.T) *ledger {
	return &ledger{Observer: invariants.Observer{Object: t.Fatalf}, t: t, live: map[RequestID]*living{}, twice: map[RequestID]bool{}, models: map[ModelID]Service{}, gpus: map[GPUID]*fuzzGPU{}, early: map[RequestID]Time{}}
}

// tell moves the clock to now and returns it.
func (l *ledger) tell(now Time) Time {
	l.now = max(l.now, now)
	return l.now
}

func (l *ledger) mix(x ...int64) {
	for _, v := range x {
		l.hash = (l.hash ^ uint64(v)) * 1099511628211
		l.hash ^= l.hash >> 31
	}
}

func (l *ledger) queued() int {
	n := 0
	for _, r := range l.live {
		n += r.Queued
	}
	return n
}

// request draws a request; some ids are already live, some models unknown, some deadlines past.
func (l *ledger) request(t *tape, now Time) Request {
	l.nextID++
	r := Request{ID: l.nextID, Model: ModelID(t.n(fuzzModels + 1)), Deadline: now.Add(t.span() + 20*ms)}
	switch k := t.byte(); {
	case k < 16 && r.ID > 8:
		r.ID -= RequestID(k % 8)
	case k < 24:
		r.Model = IDLimit + ModelID(k)
	case k < 28:
		r.Deadline = Never
	case k < 32:
		r.Deadline = -Never
	case k < 64:
		r.Avoid = Groups(k) // bits 5 and others: of GPUs 5 and 0 to 4
	case k > 200:
		r.Priority = Priority(k)
	}
	return r
}

func (l *ledger) enqueued(r Request, why vocabulary.Reason) {
	l.mix(1, int64(r.ID), int64(why))
	if why != vocabulary.ReasonNone {
		return
	}
	if m, known := l.models[r.Model]; !known || r.Deadline < l.told || !slices.ContainsFunc(m.Homes, l.served) {
		l.t.Fatalf("at %d request %+v was taken in", l.told, r)
	}
	x := l.live[r.ID]
	if x == nil {
		x = &living{}
		l.live[r.ID] = x
	} else {
		l.twice[r.ID] = true
	}
	x.Queue(int64(r.Deadline))
	x.requests = append(x.requests, r)
}

// served reports whether a sub-cluster has a GPU.
func (l *ledger) served(sub uint32) bool {
	for _, g := range l.gpus {
		if g.sub == sub {
			return true
		}
	}
	return false
}

func (l *ledger) end(id RequestID, words string) Request {
	l.t.Helper()
	x := l.live[id]
	if x == nil {
		x = &living{}
	}
	l.End(&x.Life, 0, uint64(id), words)
	r := x.requests[0]
	if x.requests = x.requests[1:]; x.Queued == 0 {
		delete(l.live, id)
	}
	return r
}

func (l *ledger) dropped(d Drop) {
	l.mix(2, int64(d.ID), int64(d.Reason))
	if d.Reason == vocabulary.ReasonNone || d.Reason >= vocabulary.ReasonCount {
		l.t.Fatalf("drop %+v has no reason", d)
	}
	l.end(d.ID, "was dropped")
}

func (l *ledger) batch(b Batch) {
	n := len(b.Requests)
	l.mix(3, int64(b.ID), int64(b.GPU), int64(b.ExecAt), int64(b.Finish), int64(n))
	m, known := l.models[b.Model]
	if !known || int(b.Variant) >= len(m.Variants) {
		l.t.Fatalf("batch %+v of %+v", b, m)
	}
	if a := m.Variants[b.Variant].Accuracy; a < m.Floor {
		l.t.Fatalf("V1: batch %+v has an accuracy of %v, the floor is %v", b, a, m.Floor)
	}
	g := l.gpus[b.GPU]
	if g == nil {
		g = &fuzzGPU{} // removed meanwhile; the driver sees that
	} else if !slices.Contains(m.Homes, g.sub) {
		l.t.Fatalf("gpu %d of %d: batch %+v of a model of %v", b.GPU, g.sub, b, m.Homes)
	}
	planned := invariants.Batch{ID: uint64(b.ID), Size: n, Most: l.most(&m, b), Arrives: int64(l.told.Add(l.ctrl + Duration(n)*l.data)),
		Start: int64(b.ExecAt), Latest: int64(b.Latest), Finish: int64(b.Finish)}
	l.Send(&g.GPU, planned)
	for i := range n {
		id := b.Requests[i].ID
		r := l.end(id, "is in a batch")
		if l.twice[id] {
			continue // the requests cannot be told apart
		}
		l.Keeps(&planned, 0, uint64(id), int64(r.Deadline))
		if l.told < l.early[id] {
			l.t.Fatalf("I10: at %d request %+v is in batch %+v, its input is there from %d", l.told, r, b, l.early[id])
		}
		if r.Model != b.Model {
			l.t.Fatalf("request %+v in batch %+v", r, b)
		}
		if r.Avoid&g.group != 0 && len(l.live) < searchMax {
			l.t.Fatalf("I9: request %+v in batch %+v on a GPU of %b", r, b, g.group)
		}
	}
	if len(l.sent) > 0 && b.ID == l.sent[len(l.sent)-1].ID {
		l.t.Fatalf("batch id %d is used twice", b.ID)
	}
	b.Requests = nil
	l.sent = append(l.sent, b)
}

// most returns the largest number of requests whose batch, by the profile, takes as long as this one: its variant's
// profile in the home of its GPU, or in any home if the GPU was removed. The test fails if no
// profile matches.
func (l *ledger) most(s *Service, b Batch) int {
	n := len(b.Requests)
	for k, sub := range s.Homes {
		p := s.Variants[b.Variant].Profiles[k]
		if g := l.gpus[b.GPU]; p == nil || g != nil && g.sub != sub {
			continue
		}
		if n > p.Max() || n == 0 || b.Finish == b.ExecAt.Add(Duration(p.Exec(n))) {
			return p.Max()
		}
	}
	l.t.Fatalf("no profile of %+v lets batch %+v end when it does", s, b)
	return 0
}

// service draws a model, or a family with variants in one to three homes; some are invalid.
func (l *ledger) service(t *tape) (ModelID, Service) {
	id, m := l.model(t)
	s := m.service()
	if !l.families || t.n(4) == 0 {
		return id, s
	}

	s.Homes, s.Variants = nil, nil
	first := t.n(fuzzSubs)
	for k := range 1 + t.n(fuzzSubs) {
		s.Homes = append(s.Homes, uint32((first+k)%fuzzSubs))
	}
	for range 1 + t.n(4) {
		v := Variant{Accuracy: float64(t.n(11)) / 10}
		for range s.Homes {
			if t.n(6) == 0 {
				v.Profiles = append(v.Profiles, nil)
				continue
			}
			p, err := profile.Linear(time.Duration(t.n(20)+1)*100*time.Microsecond, time.Duration(t.n(50)+1)*100*time.Microsecond, t.n(12)+1)
			if err != nil {
				l.t.Fatal(err)
			}
			v.Profiles = append(v.Profiles, p)
		}
		s.Variants = append(s.Variants, v)
	}
	switch t.n(30) {
	case 1:
		s.Homes[len(s.Homes)-1] = s.Homes[0] // a duplicate, if there is another
	case 2:
		s.Variants[0].Accuracy = 1.5
	case 3:
		s.Floor = math.NaN()
	case 4:
		s.Variants[0].Profiles = nil
	case 5, 6, 7, 8, 9, 10:
		s.Floor = float64(t.n(11)) / 10
	}
	return id, s
}

// sensible reports whether a service must be accepted.
func sensible(id ModelID, s Service) bool {
	if id >= IDLimit || !(s.Rate >= 0) || s.QueueMax < 0 || !(s.Floor >= 0) {
		return false
	}
	for k, sub := range s.Homes {
		if sub >= SubClusterLimit || slices.Contains(s.Homes[:k], sub) {
			return false
		}
	}
	usable := false
	for _, v := range s.Variants {
		if v.Accuracy > 1 || len(v.Profiles) != len(s.Homes) {
			return false
		}
		for _, p := range v.Profiles {
			usable = usable || p != nil && v.Accuracy >= s.Floor && s.SLO >= Duration(p.Exec(1))
		}
	}
	return usable
}

// completion draws a Complete: mostly for a batch that a GPU has, sometimes for one never sent.
func (l *ledger) completion(t *tape) (BatchID, GPUID, Time) {
	id := GPUID(t.n(fuzzGPUs))
	b := BatchID(t.byte())
	at := l.now.Add(t.span() / 4)
	if g := l.gpus[id]; g != nil && len(g.Ahead) > 0 && b > 8 {
		x := g.Ahead[int(b)%len(g.Ahead)]
		return BatchID(x.ID), id, at
	}
	if n := len(l.sent); n > 0 && b > 4 {
		return l.sent[int(b)%n].ID, id, at
	}
	return b, id, at
}

func (l *ledger) completed(b BatchID, id GPUID, at Time, err error) {
	g := l.gpus[id]
	has := g != nil && g.Complete(uint64(b), int64(at))
	if has == errors.Is(err, ErrUnknown) || has && err != nil {
		l.t.Fatalf("Complete(%d, gpu %d), which has it: %v: %v", b, id, has, err)
	}
}

// model draws a model; some are invalid.
func (l *ledger) model(t *tape) (ModelID, Model) {
	id := ModelID(t.n(fuzzModels))
	p, err := profile.Linear(time.Duration(t.n(20)+1)*100*time.Microsecond, time.Duration(t.n(50)+1)*100*time.Microsecond, t.n(12)+1)
	if err != nil {
		l.t.Fatal(err)
	}
	m := Model{Profile: p, SLO: Duration(p.Exec(1)) + Duration(t.byte())*100_000, SubCluster: uint32(t.n(fuzzSubs)), QueueMax: t.n(40)}
	switch t.n(40) {
	case 1:
		m.SLO = Duration(p.Exec(1)) - 1
	case 2:
		m.Profile = nil
	case 3:
		m.SubCluster = SubClusterLimit
	case 4:
		m.Rate = -1
	case 5:
		id += IDLimit
	case 6:
		m.QueueMax = -1
	case 7, 8, 9:
		m.Rate = float64(t.byte()) * 100
	}
	return id, m
}

// added checks the result of AddModel.
func (l *ledger) added(id ModelID, m Service, err error) {
	_, known := l.models[id]
	l.described(id, m, known, err)
}

// changed checks the result of ChangeModel.
func (l *ledger) changed(id ModelID, m Service, err error) {
	_, known := l.models[id]
	l.described(id, m, !known, err)
}

// described records a model's new description, unless the call had to fail.
func (l *ledger) described(id ModelID, m Service, bad bool, err error) {
	bad = bad || !sensible(id, m)
	if bad != (err != nil) {
		l.t.Fatalf("model %d: %+v (to be refused: %v): %v", id, m, bad, err)
	}
	if err == nil {
		l.models[id] = m
	}
}
