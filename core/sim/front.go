package sim

import (
	"fmt"
	"slices"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// grace is how long after its deadline a frontend waits for an answer, as package frontend does.
const grace Duration = 20e6

// front is a simulated frontend. It outlives its sessions.
type front struct {
	peer
	index    int
	tempo    float64    // its clock's rate
	sessions []*session // the latest session, by scheduler
	calls    []call     // by id−1
	gone     bool
	dark     Time // until then no backend reaches it
}

// call is one request as its caller sees it.
type call struct {
	deadline Time
	model    int
	asks     ask    // target within the model's family
	named    uint32 // the service that its latest Submit named
	junk     uint32 // model id of an invalid Submit; such a call has no deadline
	priority uint8
	live     bool
	told     bool // it was sent to some scheduler
	slow     bool // one of its batches runs on a GPU that is slower than its kind

	spared    Time // when it began to wait for another leader or for its model; 0: it does not wait
	wasSpared bool
	resubmits int
}

// session is a frontend's session with the engine. It implements engine.FrontendPort.
type session struct {
	link
	f        *front
	h        *engine.Frontend
	ids      []uint32     // of the models, by number; the engine's id plus one
	ready    []bool       // by model's number: some backend serves it
	families []model.Info // announced families, by number; an old frontend knows none
	heard    uint64       // epoch that the frontend last sent to the scheduler
	keys     []key        // for the checker: the state of each id
	shut     bool         // closed on the engine's side
	swept    int          // for the checker: the engine's poll count at which nothing of a closed session is queued
	// For the checker: the id submitted last at each entry of the engine's id window.
	idWindow map[uint64]uint64
}

func (c *Cluster) newFront() *front {
	f := &front{peer: newPeer(c), index: len(c.fronts), tempo: c.drift(), sessions: make([]*session, len(c.schedulers))}
	f.switched, f.follows = f.submitAgain, f.tellFollow
	if f.old {
		c.happens(OldPeer, int64(f.index), 0)
	}
	c.fronts = append(c.fronts, f)
	f.connectAll()
	return f
}

func (f *front) connectAll() {
	for _, s := range f.c.schedulers {
		f.connect(s)
	}
}

// connect opens a session with a scheduler after a random delay.
func (f *front) connect(sch *scheduler) {
	c, i := f.c, sch.index
	if f.gone || f.sessions[i] != nil && f.sessions[i].up {
		return
	}

	if !f.mayOpen(sch) {
		c.after(retryEvery, func() { f.connect(sch) })
		return
	}

	n := len(c.models)
	s := &session{f: f, idWindow: map[uint64]uint64{}, ids: make([]uint32, n), ready: make([]bool, n), families: make([]model.Info, n), link: link{sch: sch, life: sch.life, up: true}}
	h, err := sch.e.OpenFrontend(wire.FrontendHello{Version: wire.Version, Name: fmt.Sprint("f", f.index), DataAddr: "f", Window: c.window()}, s)
	if err != nil {
		c.check.fail("OpenFrontend: %v", err)
		return
	}

	// The checker finds the session of a request by its number on the wire.
	s.h, f.sessions[i] = h, s
	sch.book.sessions[h.Number()] = s
	c.note("frontend", int64(f.index), int64(h.Number()), int64(i))

	f.opened(i)
	s.tellLead()
}

// session returns the session with the obeyed scheduler, or nil.
func (f *front) session() *session {
	if f.obeyed < 0 {
		return nil
	}

	return f.sessions[f.obeyed]
}

// tellLead tells the frontend who leads.
func (s *session) tellLead() {
	if sch := s.sch; sch.candidate != nil && !s.f.old {
		m := wire.Lead{Epoch: sch.epoch, Leads: sch.leads, GPUs: uint32(sch.gpus())}
		s.f.c.sendReliably(&s.link, fromEngine, func() { s.f.led(sch.index, m) })
	}
}

// tellFollow tells scheduler i which scheduler the frontend obeys.
func (f *front) tellFollow(i int, m wire.Follow) {
	if s := f.sessions[i]; s != nil && s.sch.candidate != nil && !f.old {
		f.c.sendReliably(&s.link, toEngine, func() {
			s.heard = m.Epoch
			s.sch.step()
		})
	}
}

// breakLink cuts the connection. Both ends notice later, and the frontend connects again.
func (s *session) breakLink(engine, peer Duration) {
	c := s.f.c
	s.up = false
	c.note("frontend's link breaks", int64(s.f.index), int64(s.h.Number()), int64(s.sch.index))
	c.after(engine, s.close)
	s.drop(peer)
}

// drop lets the frontend notice the lost connection after a delay and connect again.
func (s *session) drop(after Duration) {
	f := s.f
	s.up = false
	f.c.after(after, func() {
		if f.sessions[s.sch.index] == s && !f.gone {
			f.lost(s.sch.index)
			f.connect(s.sch)
		}
	})
}

// close ends the session on the engine's side.
func (s *session) close() {
	if s.shut || s.closesLater(s.f.c, s.close) {
		return
	}
	s.up = false

	long := !s.orphaned() && s.f.c.check.hasLongQueue(s)
	if !s.orphaned() {
		s.h.Close()
	}
	s.f.c.check.afterFrontendClose(s, long)
}

// Models implements engine.FrontendPort.
func (s *session) Models(m []model.Info) {
	for i := range m {
		s.noteModel(&m[i])
	}
	if s.f.session() == s {
		s.f.submitSpared()
	}
}

// Outcomes implements engine.FrontendPort.
func (s *session) Outcomes(m []wire.Outcome) {
	c := s.f.c
	for i := range m {
		c.check.noteOutcome(s, &m[i])
	}

	// Copy: the engine reuses the slice after the call, while the message is still under way.
	all := slices.Clone(m)
	if s.f.old {
		all = c.recodeOutcomes(all)
	}
	c.send(&s.link, fromEngine, LostOutcome, c.o.LoseOutcome, func() {
		if s.f.session() != s {
			return // a frontend ignores a scheduler that it does not obey
		}
		for i := range all {
			s.f.endByOutcome(all[i].ID, all[i].Reason)
		}
	})
}

// Answers implements engine.FrontendPort. Simulated frontends send no commands.
func (s *session) Answers([]wire.ModelAnswer) {}

// endCall ends a call unless it has ended.
func (f *front) endCall(id uint64, why model.Reason, local bool) {
	c, x := f.c, f.waitingCall(id)
	if x == nil {
		return
	}

	x.live = false
	c.note("answer", int64(f.index), int64(id), int64(why))

	switch {
	case local:
		c.report.Local++
	case why != model.ReasonNone:
		c.report.Ended++
		c.report.Reasons[why]++
	case c.now > x.deadline:
		c.report.Late++
	default:
		c.report.Good++
		c.report.Work += c.models[x.model].cost
		if x.wasSpared {
			c.report.Saved++
		}
	}

	c.check.checkCallEnd(f, id, why, local)
}

// waitingCall returns the call of an id if it has not ended, else nil.
func (f *front) waitingCall(id uint64) *call {
	if f.gone || id == 0 || id > uint64(len(f.calls)) || !f.calls[id-1].live {
		return nil
	}
	return &f.calls[id-1]
}

// message returns the Submit of a call as sent now. Its budget is reduced by the network delay in both directions.
func (f *front) message(s *session, id uint64) wire.Submit {
	x := &f.calls[id-1]

	// The frontend's clock has its own rate, so its budget is wrong by that share.
	budget := x.deadline.Sub(f.c.now) - 2*(f.c.o.Delay+f.c.o.Vary)
	x.named, _ = s.namedService(x.model, x.asks)
	x.told = true
	return wire.Submit{ID: id, Model: x.named, Priority: x.priority, Budget: int64(float64(budget) * f.tempo),
		Input: model.Descriptor{Key: id, Length: 1}}
}

func (f *front) submit(s *session, m []wire.Submit) {
	if f.old {
		m = f.c.recodeSubmits(m)
	}
	f.c.send(&s.link, toEngine, LostSubmit, f.c.o.LoseSubmit, func() {
		f.c.check.beforeSubmit(s, m)
		if !s.h.Submit(m) {
			f.c.check.fail("Submit on an open session was refused")
		}
		f.c.check.afterSubmit(s, m)
	})
}

func (f *front) cancel(id uint64) {
	s := f.session()
	if s == nil {
		return
	}
	f.c.send(&s.link, toEngine, LostCancel, f.c.o.LoseCancel, func() {
		f.c.note("cancel", int64(f.index), int64(id), 0)
		x := &f.calls[id-1]
		m := wire.Cancel{ID: id, Model: x.named}
		if x.deadline == 0 {
			m.Model = x.junk
		}

		// The second Cancel names an id that was never submitted, which the engine must ignore.
		s.h.Cancel([]wire.Cancel{m, {ID: id + 1e9, Model: m.Model}})
		f.c.check.afterCancel(s, &m)
	})
}

// arrivals starts a frontend's calls: bursts at exponential gaps, at a mean rate in requests/s.
func (c *Cluster) arrivals(f *front, rate float64, end Time) {
	// A burst has (Burst + 1) / 2 requests on average, so the gaps, in ns, are longer by that factor.
	mean := float64(c.o.Burst+1) / 2 / rate * 1e9
	c.after(Duration(c.load.ExpFloat64()*mean), func() {
		if f.gone || c.now > end {
			return
		}
		f.submitBurst(1 + c.load.IntN(c.o.Burst))
		c.arrivals(f, rate, end)
	})
}

// submitBurst makes n calls and submits them at once.
func (f *front) submitBurst(n int) {
	c, s := f.c, f.session()
	from, last := len(f.calls), c.now

	var m []wire.Submit
	for range n {
		// As in the real frontend, an id is not used while its window entry belongs to a call that has not ended.
		if f.full() {
			break
		}

		if c.load.Float64() < c.o.Junk {
			m = append(m, f.junk())
			continue
		}

		k := c.pickModel()
		asks := c.drawAsk()
		if s != nil && !s.knows(k, asks) {
			continue
		}

		budget := c.models[k].slo
		if c.load.Float64() < c.o.ShortBudgets {
			budget = Duration(c.load.Int64N(int64(2 * budget)))
		}

		x := call{deadline: c.now.Add(budget), model: k, asks: asks, live: true}
		if c.o.Priorities && c.load.IntN(4) == 0 {
			x.priority = uint8(c.load.IntN(256))
		}
		id := f.addCall(x)
		last = max(last, x.deadline)
		if s == nil {
			continue
		}
		if _, ok := s.namedService(k, asks); !ok {
			f.endTooHigh(id)
			continue
		}
		m = append(m, f.message(s, id))
	}

	if len(m) > 0 && s != nil {
		f.submit(s, m)
	}

	if len(f.calls) > from {
		f.expire(from, len(f.calls), last)
	}
}

// full reports whether the window entry of the next id belongs to a call that has not ended.
func (f *front) full() bool {
	before := len(f.calls) - int(f.c.window())
	return before >= 0 && f.calls[before].live
}

// window returns the size of a frontend's id window.
func (c *Cluster) window() uint32 {
	if c.o.Window > 0 {
		return c.o.Window
	}

	return 1 << 14
}

// addCall counts a call and returns its id.
func (f *front) addCall(x call) uint64 {
	c := f.c
	f.calls = append(f.calls, x)
	id := uint64(len(f.calls))
	c.report.Calls++
	if c.chance(c.o.Cancels) {
		c.after(c.within(0, x.deadline.Sub(c.now)), func() {
			if f.calls[id-1].live {
				f.endCall(id, model.Canceled, true)
				f.cancel(id)
			}
		})
	}

	return id
}

// expire ends the calls of a burst that nobody answered, after the grace of the last one.
func (f *front) expire(from, to int, last Time) {
	c := f.c

	// The grace starts at the latest deadline of the burst and allows for two round trips.
	c.at(last.Add(grace+4*(c.o.Delay+c.o.Vary)), func() {
		for i := from; i < to; i++ {
			if f.calls[i].live {
				f.endCall(uint64(i+1), f.calls[i].whyExpired(), true)
				f.cancel(uint64(i + 1))
			} else if f.calls[i].deadline == 0 { // invalid
				f.cancel(uint64(i + 1))
			}
		}
	})
}

// junk returns an invalid Submit. No call will have its id.
func (f *front) junk() wire.Submit {
	// Take an id as calls do, so that no later call is mistaken for this one.
	r := f.c.load
	f.calls = append(f.calls, call{})
	m := wire.Submit{ID: uint64(len(f.calls)), Model: r.Uint32(), Budget: int64(r.Uint64())}
	switch r.IntN(3) {
	case 0:
		m.Model = uint32(r.IntN(len(f.c.models) + 2))
	case 1:
		m.Budget = int64(f.c.models[0].slo)
	}
	f.calls[m.ID-1].junk = m.Model
	return m
}
