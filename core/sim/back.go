package sim

import (
	"fmt"
	"slices"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// back is a backend: it outlives its sessions, and dies and returns.
type back struct {
	c       *Cluster
	index   int
	hello   wire.BackendHello
	tempo   float64
	slow    float64 // batches take that much longer now
	life    int     // grows when it dies
	dead    bool
	hung    Time // until then nothing ends
	s       *backSession
	freeAt  []Time   // per GPU, when its queue is empty
	running []*order // not ended, in no order
}

// backSession is a backend's session with the engine: its BackendPort.
type backSession struct {
	link
	b      *back
	h      *engine.Backend
	closed bool
	// The checker's: batches sent and not done, GPUs as planned, frontends announced.
	flights map[uint64]*order
	gpus    []plan
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

	life        int
	end         Time // on the backend
	exec, fetch Duration
	told        bool // Done has been sent
	bad         []wire.ItemFailure
}

func (c *Cluster) newBack(i int) *back {
	b := &back{c: c, index: i, tempo: c.drift(), slow: 1, freeAt: make([]Time, c.o.GPUs)}
	cluster := i % c.o.Clusters
	b.hello = wire.BackendHello{Version: wire.Version, Name: fmt.Sprint("b", i), GPUs: make([]string, c.o.GPUs)}
	if c.o.Named {
		b.hello.SubCluster = fmt.Sprint("s", cluster)
	}
	unlike := 1 + c.o.Unlike*c.rng.Float64()
	for _, k := range c.modelsOf(cluster) {
		m := &c.models[k]
		table := slices.Clone(m.table)
		for j := range table {
			table[j] = int64(float64(table[j]) * unlike)
		}
		b.hello.Models = append(b.hello.Models, wire.BackendModel{Profile: table,
			Info: wire.ModelInfo{Name: m.name, Version: "1", SLO: int64(m.slo), BatchMax: uint32(len(table))}})
	}
	return b
}

func (b *back) connect() {
	if b.dead || b.s != nil && b.s.up {
		return
	}
	c := b.c
	s := &backSession{b: b, flights: map[uint64]*order{}, peers: map[uint32]bool{}, gpus: make([]plan, c.o.GPUs)}
	s.up = true
	b.s = s
	c.note("backend", int64(b.index), 0, 0)
	hello := b.hello
	hello.Models = slices.Clone(hello.Models)
	h, err := c.e.OpenBackend(hello, s)
	if err != nil {
		c.check.fail("OpenBackend: %v", err)
		return
	}
	s.h = h
}

// breakLink cuts the connection; the engine notices after a while, and so does the backend.
func (s *backSession) breakLink(back Duration) {
	c := s.b.c
	s.up = false
	c.note("backend's link breaks", int64(s.b.index), 0, 0)
	c.after(c.within(0, 200e6), s.close)
	c.after(back, s.b.connect)
}

// close ends the session on the engine's side.
func (s *backSession) close() {
	if s.closed {
		return
	}
	c := s.b.c
	s.closed, s.up = true, false
	c.note("backend closes", int64(s.b.index), int64(len(s.flights)), 0)
	lost := c.check.backendCloses(s)
	s.h.Close()
	c.check.late(lost)
}

// Peers implements engine.BackendPort.
func (s *backSession) Peers(m []wire.Peer) {
	for i := range m {
		s.b.c.check.peer(s, &m[i])
	}
}

// Cut implements engine.BackendPort.
func (s *backSession) Cut(error) {
	c := s.b.c
	c.report.Cuts++
	c.note("cut", int64(s.b.index), 0, 0)
	c.after(c.within(0, cutMost), func() {
		if s.up {
			s.breakLink(c.within(0, 100e6))
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
		o := &order{s: s, sent: c.now}
		m[i].Message(&o.x)
		c.check.executed(o)
		c.report.Batches++
		c.send(&s.link, fromEngine, "execute", c.o.LoseExecute, func() { s.b.accept(o) })
	}
}

// accept plans an order on its GPU, behind what is there.
func (b *back) accept(o *order) {
	c := b.c
	n := len(o.x.Items)
	if b.dead {
		return
	}
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
	begin := max(c.now.Add(o.fetch), *free, b.hung)
	if !c.o.Eager && !c.calm {
		begin = max(begin, c.now.Add(Duration(float64(o.x.Start)*b.tempo)))
	}
	last := Time(0)
	for i := range o.x.Items {
		last = max(last, c.now.Add(Duration(o.x.Items[i].Budget)*1000))
		if !c.calm && c.chance(c.o.FailItem) {
			o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: uint8(sched.InputUnavailable)})
		} else if !c.calm && c.chance(c.o.GiveBack) {
			why := [...]sched.Reason{sched.BackendLost, sched.NoBackend}[c.rng.IntN(2)] // it ran, or not
			o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: uint8(why)})
		}
	}
	if begin.Add(Duration(table[n-1]-table[n-1]/8)) > last {
		o.exec, o.bad = 0, nil // nobody wants it any more
		for i := range o.x.Items {
			o.bad = append(o.bad, wire.ItemFailure{Index: uint32(i), Reason: uint8(sched.DeadlineCannotBeMet)})
		}
	}
	c.check.begins(o, begin)
	o.end = begin.Add(o.exec)
	*free = o.end
	b.running = append(b.running, o)
	if !c.calm && c.chance(c.o.Ahead) {
		c.at(max(c.now, o.end-Time(o.exec/2)), func() { b.report(o) })
	}
	c.at(o.end, func() { b.finish(o) })
}

// finish ends an order: outputs go to the frontends, Done to the engine.
func (b *back) finish(o *order) {
	c := b.c
	if o.life != b.life {
		return // it died with it
	}
	if o.end > c.now { // held up meanwhile
		c.at(o.end, func() { b.finish(o) })
		return
	}
	b.running = slices.DeleteFunc(b.running, func(x *order) bool { return x == o })
	reasons := make([]sched.Reason, len(o.x.Items))
	for _, x := range o.bad {
		reasons[x.Index] = sched.Reason(x.Reason)
	}
	c.after(c.delay(), func() {
		for i := range o.x.Items {
			x := &o.x.Items[i]
			if s := c.check.sessions[x.Frontend]; s != nil && !givenBack(reasons[i]) && (c.calm || !c.chance(c.o.LoseOutput)) {
				s.f.answer(x.ID, reasons[i], false)
			}
		}
	})
	b.report(o)
}

// report sends Done, unless it was sent ahead.
func (b *back) report(o *order) {
	c := b.c
	if o.life != b.life || o.told {
		return
	}
	o.told = true
	m := wire.Done{Batch: o.x.Batch, GPU: o.x.GPU, Fetch: int64(o.fetch), Exec: int64(float64(o.exec) * b.tempo), FreeIn: int64(max(0, o.end.Sub(c.now))), Failures: o.bad}
	s := o.s
	c.send(&s.link, toEngine, "done", c.o.LoseDone, func() {
		back := c.check.done(s, &m)
		if !s.h.Done([]wire.Done{m}) {
			c.check.fail("Done on an open session was refused")
		}
		c.check.late(back)
	})
}

// givenBack says whether a request that failed so is for others to serve.
func givenBack(why sched.Reason) bool { return why == sched.BackendLost || why == sched.NoBackend }

// hang holds up everything that has not ended.
func (b *back) hang(d Duration) {
	c := b.c
	if b.dead || b.hung > c.now {
		return
	}
	c.note("hangs", int64(b.index), int64(d), 0)
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
	c.note("dies", int64(b.index), int64(back), 0)
	b.life++
	b.dead, b.running = true, nil
	if b.s.up {
		b.s.up = false
		c.after(c.within(0, 200e6), b.s.close)
	}
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
	b.connect()
}
