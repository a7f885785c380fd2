package sched

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"downbeat.dev/core/invariants"
	vocabulary "downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

// tape reads the calls of a fuzz run from bytes; at its end everything is 0.
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

// ledger follows what a scheduler puts out. What any scheduler must keep is the observer's to check; the rest is checked
// here.
type ledger struct {
	invariants.Observer
	t          *testing.T
	now        Time // the driver's clock
	told       Time // what its partition goes by: it must not go back
	ctrl, data Duration
	live       map[RequestID]*living
	twice      map[RequestID]bool // ids that were live more than once: the plan cannot be told apart
	models     map[ModelID]Service
	families   bool // services are families as often as models
	gpus       map[GPUID]*fuzzGPU
	sent       []Batch // all of them, without requests
	nextID     RequestID
	hash       uint64
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
	return &ledger{Observer: invariants.Observer{Object: t.Fatalf}, t: t, live: map[RequestID]*living{}, twice: map[RequestID]bool{}, models: map[ModelID]Service{}, gpus: map[GPUID]*fuzzGPU{}}
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

// request draws a request; some ids are live already, some models unknown, some deadlines past.
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

// served says whether a sub-cluster has a GPU.
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
		g = &fuzzGPU{} // it has gone meanwhile; the driver sees that
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
			continue // which of them it is cannot be told
		}
		l.Keeps(&planned, 0, uint64(id), int64(r.Deadline))
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

// most is how many requests the profile allows by which a batch takes as long as it does: its variant's in the home of its
// GPU, or in any home where the GPU has gone. No profile is one of none.
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

// service draws a model, or a family with variants in one to three homes, some of them bad.
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
		s.Homes[len(s.Homes)-1] = s.Homes[0] // twice, if there is another
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

// sensible says whether a service must be accepted.
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

// completion draws a Complete: mostly of a batch that a GPU has, some of one never sent.
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

// model draws a model, some of them bad.
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

// added compares the answer to AddModel with what it must be.
func (l *ledger) added(id ModelID, m Service, err error) {
	_, known := l.models[id]
	l.described(id, m, known, err)
}

// changed compares the answer to ChangeModel with what it must be.
func (l *ledger) changed(id ModelID, m Service, err error) {
	_, known := l.models[id]
	l.described(id, m, !known, err)
}

// described notes a model that was described anew, unless that had to fail.
func (l *ledger) described(id ModelID, m Service, bad bool, err error) {
	bad = bad || !sensible(id, m)
	if bad != (err != nil) {
		l.t.Fatalf("model %d: %+v (to be refused: %v): %v", id, m, bad, err)
	}
	if err == nil {
		l.models[id] = m
	}
}

// addTapes adds tapes of chance, always the same ones, so that a plain test run breaks rules as a fuzz run would.
func addTapes(f *testing.F) {
	f.Add([]byte{})
	rng := rand.NewChaCha8([32]byte{})
	for range 48 {
		b := make([]byte, 512)
		_, _ = rng.Read(b) // it never fails
		f.Add(b)
	}
}

// FuzzScheduler calls a Scheduler in any order with anything, and checks I1 to I7.
func FuzzScheduler(f *testing.F) {
	addTapes(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		first, second := playScheduler(t, b, false), playScheduler(t, b, false)
		if first != second {
			t.Fatalf("I7: the same calls gave other outputs")
		}
	})
}

// FuzzFamilies does the same where services are families with variants in several sub-clusters, and checks that no
// batch is below its requests' floor (V1).
func FuzzFamilies(f *testing.F) {
	addTapes(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		if first, second := playScheduler(t, b, true), playScheduler(t, b, true); first != second {
			t.Fatalf("I7: the same calls gave other outputs")
		}
		if first, second := playHalves(t, b, true), playHalves(t, b, true); first != second {
			t.Fatalf("I7: the same calls gave other outputs")
		}
	})
}

// play is a Scheduler under a ledger.
type play struct {
	*ledger
	tape
	s *Scheduler
}

func playScheduler(t *testing.T, b []byte, families bool) uint64 {
	p := &play{ledger: newLedger(t), tape: tape{b}, s: New(Options{Prompt: float64(len(b)%3) / 4})}
	p.s.part.near, p.families = len(b)%2*nearModels, families
	for sub := range uint32(fuzzSubs) {
		m := Model{Profile: line(t, time.Duration(sub+1)*time.Millisecond/2, 2*time.Millisecond, 1+3*int(sub)), SLO: 20 * ms, SubCluster: sub}
		p.addService(ModelID(sub), m.service())
		p.addGPU(GPUID(sub), sub)
	}
	for p.more() {
		p.step()
		p.check()
	}
	p.drain()
	return p.hash
}

// step makes one call.
func (p *play) step() {
	now := p.now
	switch op := p.n(24); op {
	default:
		r := p.request(&p.tape, now)
		p.take(func() { p.enqueued(r, p.s.Enqueue(now, r)) })
	case 8, 9:
		p.tell(now.Add(max(0, p.span())))
	case 10, 11, 12:
		if at := p.s.NextWake(); at != Never && at.Sub(now) < 1000*ms {
			now = p.tell(max(now, at))
		}
		p.take(func() { p.s.Advance(now) })
	case 13, 14, 15:
		b, g, at := p.completion(&p.tape)
		p.take(func() { p.completed(b, g, at, p.s.Complete(now, b, g, at)) })
	case 16:
		p.cancel(now)
	case 17: // time goes back
		at := now.Add(-max(0, p.span()))
		p.take(func() { p.s.Advance(at) })
		r := p.request(&p.tape, now)
		p.take(func() { p.enqueued(r, p.s.Enqueue(at, r)) })
	case 18, 19:
		p.addGPU(GPUID(p.n(fuzzGPUs)), uint32(p.n(fuzzSubs)))
	case 20:
		id := GPUID(p.n(fuzzGPUs + 1))
		delete(p.gpus, id)
		p.take(func() { p.s.RemoveGPU(now, id) })
	case 21:
		id, m := p.service(&p.tape)
		if p.families {
			p.s.SetPrice(uint32(p.n(fuzzSubs)), float64(p.byte()))
		}
		if p.byte() > 128 {
			p.take(func() { p.changed(id, m, p.s.ChangeService(now, id, m)) })
			return
		}
		p.addService(id, m)
	case 22:
		id := ModelID(p.n(fuzzModels + 1))
		p.take(func() { p.s.RemoveModel(now, id) })
		delete(p.models, id)
	case 23:
		p.ctrl, p.data = p.span()/8, p.span()/64
		ctrl, data := p.ctrl, p.data
		p.ctrl, p.data = max(0, ctrl), max(0, data)
		p.take(func() { p.s.SetNetworkDelay(now, ctrl, data) })
	}
}

func (p *play) addGPU(id GPUID, sub uint32) {
	known := p.gpus[id] != nil
	if !known {
		p.gpus[id] = &fuzzGPU{GPU: invariants.GPU{Free: int64(p.now)}, sub: sub}
	}
	p.take(func() {
		if err := p.s.AddGPU(p.now, id, sub); known != errors.Is(err, ErrKnown) || !known && err != nil {
			p.t.Fatalf("AddGPU(%d, %d) (known: %v): %v", id, sub, known, err)
		}
	})
}

func (p *play) addService(id ModelID, m Service) {
	p.take(func() { p.added(id, m, p.s.AddService(p.now, id, m)) })
}

func (p *play) cancel(now Time) {
	id := p.nextID - min(p.nextID, RequestID(p.byte()))
	r := Request{ID: id, Model: ModelID(p.n(fuzzModels))}
	var all []Request
	if x := p.live[id]; x != nil {
		all = x.requests
	}
	sure := len(all) == 1 && p.byte() > 20
	if sure {
		r = all[0]
	}
	p.take(func() {
		ok := p.s.Cancel(now, r.Model, r.ID, r.Origin)
		if sure && !ok || ok && len(all) == 0 {
			p.t.Fatalf("I1: Cancel(%+v) = %v, queued %v", r, ok, all)
		}
		if ok {
			p.end(id, "was canceled")
		}
	})
}

// take makes a call and follows its actions.
func (p *play) take(call func()) {
	call()
	if p.s.part.now < p.told {
		p.t.Fatalf("the partition's time goes back from %d to %d", p.told, p.s.part.now)
	}
	p.told = p.s.part.now
	batches, drops := p.s.Actions()
	for _, d := range drops {
		p.dropped(d)
	}
	for _, b := range batches {
		p.batch(b)
	}
}

// check looks at what must hold between calls.
func (p *play) check() {
	for _, r := range p.s.rankers {
		for id := range r.gpus {
			if g := &r.gpus[id]; g.state == granted || int(g.ahead) > aheadMax {
				p.t.Fatalf("I5: gpu %d of sub-cluster %d is in state %d with %d batches between calls", id, r.number, g.state, g.ahead)
			}
		}
	}
	n := 0
	for id, m := range p.models {
		q := p.s.Queued(id)
		if most := m.QueueMax; most > 0 && q > most {
			p.t.Fatalf("I6: %d requests of model %d are queued, at most %d", q, id, most)
		}
		n += q
	}
	if n != p.queued() {
		p.t.Fatalf("I1: %d requests are queued, %d were not answered", n, p.queued())
	}
}

// drain calls the scheduler when it asks for it until every deadline has passed: nothing may be
// left but what waits forever.
func (p *play) drain() {
	last := p.now
	for _, all := range p.live {
		for _, r := range all.requests {
			if r.Deadline != Never {
				last = max(last, r.Deadline)
			}
		}
	}
	for calls := 0; ; calls++ {
		at := p.s.NextWake()
		if at > last {
			break
		}
		if at > p.now {
			calls = 0
		}
		if calls > 1000 {
			p.t.Fatalf("at %d the scheduler asks for %d again and again", p.now, at)
		}
		p.tell(at)
		p.take(func() { p.s.Advance(p.now) })
		p.check()
	}
	for id, all := range p.live {
		if all.requests[0].Deadline != Never && !p.twice[id] {
			p.t.Fatalf("C2: request %d never ended: %+v", id, *all)
		}
	}
}
