package sched

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"downbeat.dev/core/invariants"
)

// addTapes adds random tapes, always the same ones, so that a plain test run finds broken rules as a fuzz run does.
func addTapes(f *testing.F) {
	f.Add([]byte{})
	rng := rand.NewChaCha8([32]byte{})
	for range 48 {
		b := make([]byte, 512)
		_, _ = rng.Read(b) // it never fails
		f.Add(b)
	}
}

// FuzzScheduler calls a Scheduler in any order with any arguments, and checks I1 to I7.
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

// FuzzFamilies does the same with services that are families with variants in several sub-clusters, and checks that
// no batch is below its requests' floor (V1).
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
	case 7:
		r, from := p.request(&p.tape, now), now.Add(p.span()/2)
		p.take(func() {
			why := p.s.JoinEarly(now, r, from)
			p.enqueued(r, why)
			p.noteEarly(r, from, why)
		})
	case 6:
		r := Request{ID: p.nextID - min(p.nextID, RequestID(p.n(16))), Model: ModelID(p.n(fuzzModels))}
		p.take(func() {
			p.s.Hasten(now, r.Model, r.ID, r.Origin)
			delete(p.early, r.ID)
		})
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
			sub, price := uint32(p.n(fuzzSubs)), float64(p.byte())
			p.s.SetPrice(sub, price, price/2)
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

// check checks the conditions that hold between calls.
func (p *play) check() {
	for _, r := range p.s.rankers {
		for id := range r.gpus {
			if g := &r.gpus[id]; g.state == granted || int(g.unfinished) > unfinishedMax {
				p.t.Fatalf("I5: gpu %d of sub-cluster %d is in state %d with %d batches between calls", id, r.number, g.state, g.unfinished)
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

// drain calls the scheduler whenever it asks, until every deadline has passed: then only requests without a deadline
// may be left.
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
