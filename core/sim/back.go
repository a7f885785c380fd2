package sim

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// back is a backend: it outlives its sessions, and dies and returns.
type back struct {
	peer
	index    int
	hello    wire.BackendHello
	tempo    float64
	slow     float64 // batches take that much longer now
	life     int     // grows when it dies
	dead     bool
	hung     Time           // until then nothing ends
	sessions []*backSession // by scheduler: the latest
	freeAt   []Time         // per GPU, when its queue is empty
	broken   []bool         // per GPU: every batch fails
	running  []*order       // not ended, in no order
	epoch    uint64         // the checker's: of the newest order that it has taken
	shelf    shelf
}

// backSession is a backend's session with the engine: its BackendPort.
type backSession struct {
	link
	b      *back
	h      *engine.Backend
	closed bool
	told   control.Told        // to the scheduler
	fronts map[uint32]*session // of the scheduler's life that the session is with
	// The checker's: batches sent and not done, GPUs as planned, frontends announced.
	flights map[uint64]*order
	gpus    []seenGPU
	peers   map[uint32]bool
}

// order is a batch, from Execute to its end.
type order struct {
	s    *backSession
	x    wire.Execute
	sent Time
	// As planned, on the checker's account.
	plannedStart Time
	plannedExec  Duration

	epoch       uint64 // that its scheduler led in
	life        int
	begin       Time
	end         Time // on the backend
	exec, fetch Duration
	told        bool // Done has been sent
	bad         []wire.ItemFailure
}

// oneKind is how far the profiles of backends may differ that name the same kind of GPU; others name none.
const oneKind = 0.15

func (c *Cluster) newBack(i int) *back {
	b := &back{peer: newPeer(c), index: i, tempo: c.drift(), slow: 1, freeAt: make([]Time, c.o.GPUs), broken: make([]bool, c.o.GPUs),
		sessions: make([]*backSession, len(c.schedulers))}

	b.switched, b.follows = b.dropOrders, b.tellFollow
	if b.old {
		c.happens(OldPeer, int64(i), 1)
	}

	cluster := i % c.o.Clusters
	b.hello = wire.BackendHello{Version: wire.Version, Name: fmt.Sprint("b", i), GPUs: make([]string, c.o.GPUs)}
	if c.o.Named {
		b.hello.SubCluster = fmt.Sprint("s", cluster)
	}

	// One factor for all models: it is the backend's GPUs that are slower.
	unlike := 1 + c.o.Unlike*c.rng.Float64()
	for _, k := range c.modelsOf(cluster) {
		m := &c.models[k]
		table := slices.Clone(m.table)
		for j := range table {
			table[j] = time.Duration(float64(table[j]) * unlike)
		}
		c.scaleKind(table, cluster)
		b.hello.Models = append(b.hello.Models, wire.BackendModel{Profile: table, Info: model.Info{Name: m.name, Version: "1", SLO: int64(m.slo),
			BatchMax: uint32(len(table)), Family: m.family, Accuracy: m.accuracy}})
	}
	switch {
	case c.o.loading():
		b.stockShelf(cluster)
	case c.o.Unlike <= oneKind:
		b.hello.Details = slices.Repeat([]wire.GPUDetail{{Kind: c.kindOf(cluster)}}, c.o.GPUs)
	}

	return b
}

// leastProfile is the least that any backend of the same models measured of one of them, by the batch's size. Where all measure alike
// it is the backend's own.
func (c *Cluster) leastProfile(b *back, model uint32) []time.Duration {
	own := b.hello.Models[model].Profile
	if c.o.Unlike == 0 {
		return own
	}

	// Backends differ by one factor for all models, so that one size tells which is the quickest.
	least := own
	for _, other := range c.backs {
		if t := other.hello.Models; other.index%c.o.Clusters == b.index%c.o.Clusters && t[model].Profile[0] < least[0] {
			least = t[model].Profile
		}
	}
	return least
}

func (b *back) connectAll() {
	for _, s := range b.c.schedulers {
		b.connect(s)
	}
}

// connect opens a session with a scheduler, sooner or later.
func (b *back) connect(sch *scheduler) {
	c, i := b.c, sch.index
	if b.dead || b.sessions[i] != nil && b.sessions[i].up {
		return
	}

	if !b.mayOpen(sch) {
		c.after(retryEvery, func() { b.connect(sch) })
		return
	}

	s := &backSession{b: b, flights: map[uint64]*order{}, peers: map[uint32]bool{}, gpus: make([]seenGPU, c.o.GPUs),
		link: link{sch: sch, life: sch.life, up: true}, fronts: sch.book.sessions, told: control.Told{GPUs: c.o.GPUs}}
	b.sessions[i] = s
	c.note("backend", int64(b.index), int64(i), 0)

	// The engine may keep what it is given, and the backend opens more sessions with the same hello.
	h, err := sch.e.OpenBackend(b.greet(), s)
	if err != nil {
		c.check.fail("OpenBackend: %v", err)
		return
	}
	s.h = h

	b.opened(i)
	s.tellLead()
	s.offerLearners()
}

// session is the one with the scheduler that is obeyed; nil: there is none.
func (b *back) session() *backSession {
	if b.obeyed < 0 {
		return nil
	}

	return b.sessions[b.obeyed]
}

// dropOrders forgets what has not begun of the orders of a scheduler that is obeyed no more.
func (b *back) dropOrders() {
	c, s := b.c, b.session()

	// What has begun runs to its end: a GPU cannot be stopped. A life of -1 keeps the others from ending.
	b.running = slices.DeleteFunc(b.running, func(o *order) bool {
		if o.begin <= c.now || o.s == s {
			return false
		}
		o.life = -1
		return true
	})

	// The queues are planned anew from what still runs.
	for g := range b.freeAt {
		b.freeAt[g] = c.now
	}

	for _, o := range b.running {
		b.freeAt[o.x.GPU] = max(b.freeAt[o.x.GPU], o.end)
	}
}

// tellLead tells the backend who leads.
func (s *backSession) tellLead() {
	if sch := s.sch; sch.candidate != nil && !s.b.old {
		m := wire.Lead{Epoch: sch.epoch, Leads: sch.leads, GPUs: uint32(sch.gpus())}
		s.b.c.tell(&s.link, fromEngine, func() { s.b.led(sch.index, m) })
	}
}

// tellFollow tells a scheduler whom the backend obeys.
func (b *back) tellFollow(i int, m wire.Follow) {
	if s := b.sessions[i]; s != nil && s.sch.candidate != nil && !b.old {
		b.c.tell(&s.link, toEngine, func() {
			s.told.Follows = &m
			if m.Alive {
				s.told.Followed = m.Epoch
			}
			s.sch.step()
		})
	}
}

// breakLink cuts the connection; the engine notices after a while, and so does the backend.
func (s *backSession) breakLink(engine, peer Duration) {
	c := s.b.c
	s.up = false
	c.note("backend's link breaks", int64(s.b.index), int64(s.sch.index), 0)
	c.after(engine, s.close)
	s.drop(peer)
}

// drop lets the backend notice after a while that the connection is gone; then it connects anew.
func (s *backSession) drop(after Duration) {
	b := s.b
	s.up = false
	b.c.after(after, func() {
		if b.sessions[s.sch.index] == s {
			b.lost(s.sch.index)
			b.connect(s.sch)
		}
	})
}

// close ends the session on the engine's side.
func (s *backSession) close() {
	c := s.b.c
	if s.closed || s.closesLater(c, s.close) {
		return
	}
	s.closed, s.up = true, false
	c.note("backend closes", int64(s.b.index), int64(len(s.flights)), 0)

	// The checker's accounts change first: closing queues the requests again, and outcomes may come out at once.
	lost := c.check.backendCloses(s)
	if !s.orphaned() {
		s.h.Close()
		c.check.late(lost)
	}
}

// Peers implements engine.BackendPort.
func (s *backSession) Peers(m []wire.Peer) {
	for i := range m {
		s.b.c.check.peer(s, &m[i])
	}
}

// Place implements engine.BackendPort.
func (s *backSession) Place(m []wire.Placement) {
	c := s.b.c
	all := slices.Clone(m)
	c.tell(&s.link, fromEngine, func() { s.b.takePlacements(s, all) })
	if c.moves != nil {
		c.moves.noteOrders(len(m))
	}
}

// Command implements engine.BackendPort.
func (s *backSession) Command([]wire.ModelCommand) {}

// Cut implements engine.BackendPort.
func (s *backSession) Cut(error) {
	c := s.b.c
	c.report.Cuts++
	c.note("cut", int64(s.b.index), 0, 0)
	c.after(c.within(0, cutMost), func() {
		if s.up {
			s.breakLink(0, c.within(0, 100e6))
		}
		s.close()
	})
}

// cutMost is how long a session takes to end once the engine has given it up.
const cutMost Duration = 10e6

// Execute implements engine.BackendPort.
func (s *backSession) Execute(m []engine.Order) {
	c := s.b.c
	for i := range m {
		o := &order{s: s, sent: c.now, epoch: s.sch.epoch}
		m[i].Message(&o.x)
		c.check.executed(o)
		c.report.Batches++

		// A peer of the version before gets what that version's encoding leaves of the order; the checker keeps
		// the whole.
		sent := o
		if s.b.old {
			sent = c.recodeOrder(o)
		}
		c.send(&s.link, fromEngine, LostExecute, c.o.LoseExecute, func() { s.b.accept(sent) })
	}
}

// accept plans an order on its GPU, behind what is there.
func (b *back) accept(o *order) {
	c := b.c
	n := len(o.x.Items)
	switch {
	case b.dead:
		return
	case b.session() != o.s: // the scheduler is obeyed no more, or not yet
		c.happens(StaleOrder, int64(b.index), int64(o.x.Batch))
		return
	}
	c.check.obeyed(b, o)

	y := *o // the same message may come twice
	o = &y
	o.life = b.life

	free := &b.freeAt[o.x.GPU]
	table := b.hello.Models[o.x.Model].Profile
	o.exec = Duration(table[n-1])
	if !c.calm {
		o.fetch = Duration(n) * c.within(0, c.o.Data)
		o.exec = Duration(float64(table[n-1]) * b.slow * (1 - c.o.ExecLess*c.rng.Float64() + c.o.ExecMore*c.rng.Float64()))
	}

	// A batch begins when its inputs are there and the GPU is free; a backend that is not eager also waits for its
	// planned start.
	o.begin = max(c.now.Add(o.fetch), *free, b.hung)
	if !c.o.Eager && !c.calm {
		o.begin = max(o.begin, c.now.Add(Duration(float64(o.x.Start)*b.tempo)))
	}

	// The latest deadline in the batch: after it nobody waits for any of its outputs. Budgets are in microseconds.
	last := Time(0)
	for i := range o.x.Items {
		last = max(last, c.now.Add(Duration(o.x.Items[i].Budget)*1000))
	}
	switch {
	case !b.holds(&o.x):
		b.giveBack(o)
	case b.broken[o.x.GPU]:
		b.failAll(o, model.ExecutionFailed, !b.old)
	case o.begin.Add(Duration(table[n-1]-table[n-1]/8)) > last: // nobody wants it any more
		b.failAll(o, model.DeadlineCannotBeMet, !b.old && c.chance(c.o.Untold))
	default:
		b.failSome(o)
	}

	c.check.begins(o, o.begin)
	o.end = o.begin.Add(o.exec)
	*free = o.end
	b.running = append(b.running, o)

	// Done may come before the batch's end: it says when the GPU will be free.
	if !c.calm && c.chance(c.o.Ahead) {
		c.at(max(c.now, o.end-Time(o.exec/2)), func() { b.report(o) })
	}
	c.at(o.end, func() { b.finishOrder(o) })
}

// failAll ends every request of a batch before it runs.
func (b *back) failAll(o *order, why model.Reason, untold bool) {
	o.exec, o.bad = 0, nil
	for i := range o.x.Items {
		o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: why, Untold: untold})
	}
	if untold {
		b.c.report.Faults[UntoldItem] += len(o.bad)
	}
}

// failSome ends some requests of a batch without an output: what cannot be read from its frontend, what the model
// cannot do, what the backend leaves to others.
func (b *back) failSome(o *order) {
	c := b.c
	if c.calm {
		return
	}

	for i := range o.x.Items {
		x := wire.ItemFailure{Index: uint32(i)}
		f := o.s.fronts[o.x.Items[i].Frontend]

		switch {
		case f != nil && f.f.dark > c.now:
			x.Reason, x.Untold = model.InputUnavailable, !b.old
		case c.chance(c.o.FailItem):
			x.Reason = [...]model.Reason{model.InputUnavailable, model.ExecutionFailed}[c.rng.IntN(2)]
			x.Untold = !b.old && c.chance(c.o.Untold)
			c.happens(FailedItem, int64(b.index), int64(x.Reason))
		case c.chance(c.o.GiveBack):
			x.Reason = [...]model.Reason{model.BackendLost, model.NoBackend}[c.rng.IntN(2)] // it ran, or not
			c.happens(GivenBack, int64(b.index), int64(x.Reason))
		default:
			continue
		}

		if x.Untold {
			c.report.Faults[UntoldItem]++
		}
		o.bad = append(o.bad, x)
	}
}

// finishOrder ends an order: outputs go to the frontends, Done to the engine.
func (b *back) finishOrder(o *order) {
	c := b.c
	if o.life != b.life {
		return // it died with it
	}
	if o.end > c.now { // held up meanwhile
		c.at(o.end, func() { b.finishOrder(o) })
		return
	}

	b.running = slices.DeleteFunc(b.running, func(x *order) bool { return x == o })
	failures := make([]wire.ItemFailure, len(o.x.Items))
	for _, x := range o.bad {
		failures[x.Index] = x
	}

	// Outputs go straight to the frontends, even where the session with the scheduler has broken meanwhile.
	c.after(c.delay(&o.s.link), func() {
		for i := range o.x.Items {
			b.sendOutput(o.s.fronts[o.x.Items[i].Frontend], o.x.Items[i].ID, failures[i])
		}
	})

	b.report(o)
}

// sendOutput sends a request's output, or why there is none, to its frontend.
func (b *back) sendOutput(s *session, id uint64, x wire.ItemFailure) {
	c := b.c
	switch {
	case s == nil || comesBack(x):
	case s.f.dark > c.now && !c.calm:
		c.happens(LostOutput, int64(s.f.index), int64(id))
	case !c.calm && c.chance(c.o.LoseOutput):
		c.happens(LostOutput, int64(s.f.index), int64(id))
	default:
		s.f.endCall(id, x.Reason, false)
	}
}

// report sends Done, unless it was sent ahead.
func (b *back) report(o *order) {
	c := b.c
	if o.life != b.life || o.told {
		return
	}
	o.told = true
	if b.session() != o.s {
		return // its scheduler is obeyed no more
	}

	m := wire.Done{Batch: o.x.Batch, GPU: o.x.GPU, Fetch: int64(o.fetch), Exec: int64(float64(o.exec) * b.tempo), FreeIn: int64(max(0, o.end.Sub(c.now))), Failures: o.bad}
	s := o.s

	if b.old {
		m = c.recodeDone(m)
	}
	c.send(&s.link, toEngine, LostDone, c.o.LoseDone, func() {
		// The checker's accounts change before the engine's: Done may send the next batch at once.
		back := c.check.done(s, &m)
		if !s.h.Done([]wire.Done{m}) {
			c.check.fail("Done on an open session was refused")
		}
		c.check.late(back)
	})
}

// comesBack says whether the scheduler answers a request that failed so, or has others serve it.
func comesBack(x wire.ItemFailure) bool {
	return x.Untold || x.Reason == model.BackendLost || x.Reason == model.NoBackend
}

// hang holds up everything that has not ended.
func (b *back) hang(d Duration) {
	c := b.c
	if b.dead || b.hung > c.now {
		return
	}

	b.hung = c.now.Add(d)
	for _, o := range b.running {
		o.end = o.end.Add(d)
	}

	for g := range b.freeAt {
		b.freeAt[g] = max(b.freeAt[g], c.now).Add(d)
	}
}

// die loses all it had; it returns after a while.
func (b *back) die(back Duration) {
	c := b.c
	if b.dead {
		return
	}
	c.happens(BackendDies, int64(b.index), int64(back))
	b.life++
	b.dead, b.running = true, nil

	clear(b.broken) // what starts again has a GPU that works
	for _, s := range b.sessions {
		if s != nil && s.up {
			s.up = false
			c.after(c.within(0, 200e6), s.close)
		}
	}

	// What starts again remembers no leader: it obeys the first that it hears of.
	for i := range b.standings {
		b.standings[i] = control.Standing{}
	}
	b.obeyed, b.highest, b.told, b.epoch = -1, 0, wire.Follow{}, 0

	c.after(back, b.revive)
}

func (b *back) revive() {
	if !b.dead {
		return
	}
	b.dead, b.hung, b.slow = false, 0, 1
	for g := range b.freeAt {
		b.freeAt[g] = b.c.now
	}
	b.connectAll()
}
