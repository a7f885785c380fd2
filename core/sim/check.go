package sim

import (
	"fmt"
	"slices"

	"downbeat.dev/core/invariants"
	"downbeat.dev/core/model"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// checker follows what goes through the engine's ports and remembers the first objection. The rules that any scheduler
// must keep are the observer's (C1 to C5); what the engine's sessions promise besides is checked here.
type checker struct {
	invariants.Observer
	c      *Cluster
	err    error
	bursts int // submitted
}

func (k *checker) watchCluster(c *Cluster) {
	k.c = c
	k.Object = k.fail
}

// book is what the checker knows of one scheduler's life.
type book struct {
	sessions map[uint32]*session // by number on the wire
	strays   uint64
	twins    uint64
	maybe    uint64 // further twins, perhaps
	served   uint64
}

// key is the life of one request id in one session. Maybe counts, too, what was lost in two batches: the second drops out
// only if the first is still queued. Two batches hold it after a Submit came twice.
type key struct {
	invariants.Life
	lost  bool // it came back from a backend that was lost
	again bool // it is in the Submit that the engine is taking, and was queued before
}

// seenGPU is a GPU as the engine must see it.
type seenGPU struct {
	invariants.GPU
	step uint64 // the number of the spare step that was ordered last; 0: it has ended
}

func (k *checker) fail(format string, a ...any) {
	if k.err == nil {
		k.err = fmt.Errorf("at %.6f ms: "+format, append([]any{float64(k.c.now) / 1e6}, a...)...)
	}
}

func (s *session) key(id uint64) *key {
	for uint64(len(s.keys)) < id {
		s.keys = append(s.keys, key{})
	}

	return &s.keys[id-1]
}

// seatIndex is an id's in the window.
func (s *session) seatIndex(id uint64) uint64 { return id & uint64(s.f.c.window()-1) }

// seatTaken says whether another id may have taken the id's seat over: then a cancel need not find it, and it
// need not come back from a lost backend.
func (s *session) seatTaken(id uint64) bool { return s.seats[s.seatIndex(id)] != id }

// submits is told before the engine takes a Submit.
func (k *checker) submits(s *session, m []wire.Submit) {
	now := k.c.now
	k.c.note("submit", int64(s.h.Number()), int64(m[0].ID), int64(len(m)))
	for i := range m {
		x, taken := s.key(m[i].ID), s.seatTaken(m[i].ID)

		// The seat is taken whatever happens to the request: the window has one place per id.
		s.seats[s.seatIndex(m[i].ID)] = m[i].ID
		by := int64(deadline(now, &m[i]))

		switch {
		case x.Queued > 0 && taken: // it is not known any more
			x.Suspect(by)
			s.sch.book.maybe++
			continue
		case x.Queued > 0:
			x.again = true
			continue
		case x.Deadline != 0 && s.sch.e.Queued(m[i].Model)+len(m) > searchMost: // it ended, and a long queue is not searched for it
			x.Suspect(by)
			s.sch.book.maybe++
			continue
		}

		if x.Maybe > 0 {
			s.sch.book.maybe++
		}
		x.lost, x.again = false, false
		x.Queue(by)
	}
}

// deadline is a Submit's as the engine knows it.
func deadline(now Time, m *wire.Submit) Time {
	return now.Add(Duration(max(0, min(m.Budget, sched.SLOLimit))))
}

// submitted is told when the engine has taken it.
func (k *checker) submitted(s *session, m []wire.Submit) {
	for i := range m {
		switch x := s.key(m[i].ID); {
		case x.again && x.Queued > 0:
			s.sch.book.twins++
		case x.again: // it ended meanwhile, before or after its twin was looked at
			x.Suspect(int64(deadline(k.c.now, &m[i])))
			s.sch.book.maybe++
		}
		s.key(m[i].ID).again = false
		k.overdue(s, m[i].ID, 2*k.c.o.PollLate) // where a wake-up is overdue, what it leads to may want another one
	}

	// The bound is about all models, so it is not looked at after every burst.
	if k.bursts%32 == 0 {
		k.bounded(s)
	}
	k.bursts++
}

// bounded objects to more queued requests than the engine may hold.
func (k *checker) bounded(s *session) {
	o, all := &k.c.o, 0
	bound := func(id uint32, name string) {
		queued := s.sch.e.Queued(id)
		if o.QueueMax > 0 && queued > o.QueueMax {
			k.fail("C10: %d requests of %s are queued, at most %d", queued, name, o.QueueMax)
		}
		all += queued
	}

	for m, id := range s.ids {
		if id != 0 {
			bound(id-1, k.c.models[m].name)
		}
	}
	for i := range s.families {
		f := &s.families[i]
		for _, x := range f.Floors {
			bound(x.ID, f.Name)
		}
	}

	if most := o.LiveMax * o.Partitions; all > most {
		k.fail("C10: %d requests are queued, at most %d", all, most)
	}
}

// overdue objects to a request that is queued after its deadline and some grace. A scheduler that was paused looks at its
// queues when it goes on.
func (k *checker) overdue(s *session, id uint64, grace Duration) {
	if at := k.c.now.Add(-grace); s.sch.resumed < at {
		k.Overdue(&s.key(id).Life, uint64(s.h.Number()), id, int64(at))
	}
}

// canceled is told when the engine has taken a Cancel. A queue that is longer than searchMost is searched by and by,
// and what is found in it too late may run.
func (k *checker) canceled(s *session, m *wire.Cancel) {
	if s.key(m.ID).Queued == 0 || s.seatTaken(m.ID) {
		return
	}
	if s.sch.e.Queued(m.Model) <= searchMost {
		k.fail("C1: request %d of frontend %d is queued after its Cancel", m.ID, s.h.Number())
	}
}

// searchMost is how many requests of a model a Cancel looks at, at most.
const searchMost = 256

func (k *checker) outcome(s *session, m *wire.Outcome) {
	k.c.note("outcome", int64(s.f.index), int64(m.ID), int64(m.Reason))
	if m.Reason == 0 || m.Reason >= model.ReasonCount || m.ID == 0 || s.shut {
		k.fail("C1: outcome %+v of frontend %d (closed: %v)", *m, s.f.index, s.shut)
		return
	}

	k.c.report.Told[m.Reason]++
	x := s.key(m.ID)
	if x.Queued == 0 && x.again { // one of a higher priority in the same Submit took its place, and its twin found none
		x.again = false
		return
	}

	if !x.lost {
		k.overdue(s, m.ID, k.c.o.PollLate)
	}
	k.End(&x.Life, uint64(s.h.Number()), m.ID, "ended as "+m.Reason.String())
}

// frontendClosed is told when a session has ended: nothing of it may be heard any more. What it had in a long queue is
// swept up by and by, and may enter a batch until its engine has been polled to rest once.
func (k *checker) frontendClosed(s *session, long bool) {
	s.shut = true
	if long {
		s.swept = s.sch.polls + 1
	}

	for i := range s.keys {
		if x := &s.keys[i]; long {
			x.Maybe += x.Queued
		}
		s.keys[i].Queued = 0
	}
}

// mayHold says whether a batch may hold a request of a frontend's session.
func (k *checker) mayHold(s *backSession, number uint32) bool {
	f := s.fronts[number]
	switch {
	case f == nil:
		return false
	case f.shut:
		return f.sch.polls < f.swept
	}
	return s.peers[number] || !f.up
}

// hasLongQueue says whether some queue of a session's scheduler is too long to be searched at once.
func (k *checker) hasLongQueue(s *session) bool {
	return slices.ContainsFunc(s.ids, func(id uint32) bool { return id != 0 && s.sch.e.Queued(id-1) > searchMost })
}

func (k *checker) peer(s *backSession, m *wire.Peer) {
	if m.DataAddr == "" {
		delete(s.peers, m.Frontend)
	} else {
		s.peers[m.Frontend] = true
	}
}

func (k *checker) executed(o *order) {
	s, n := o.s, len(o.x.Items)
	k.c.note("execute", int64(s.b.index)<<32|int64(o.x.GPU), int64(o.x.Batch), int64(n))
	if s.closed || s.flights[o.x.Batch] != nil || int(o.x.GPU) >= len(s.gpus) || int(o.x.Model) >= len(s.b.hello.Models) {
		k.fail("C1: backend %d (closed: %v) got %+v", s.b.index, s.closed, o.x)
		return
	}

	// The engine plans with what its sub-cluster measured, which is no less than the quickest of its backends says. A size
	// that the profile has not is the observer's to object to.
	table := k.c.leastProfile(s.b, o.x.Model)

	// Orders count from when they leave, the observer on one clock.
	o.plannedStart, o.plannedExec = o.sent.Add(Duration(o.x.Start)), Duration(table[min(max(n, 1), len(table))-1])
	planned := invariants.Batch{ID: o.x.Batch, Size: n, Most: len(table), Arrives: int64(o.sent), Start: int64(o.plannedStart),
		Latest: int64(o.sent.Add(Duration(o.x.Latest))), Finish: int64(o.plannedStart.Add(o.plannedExec))}

	g := &s.gpus[o.x.GPU]
	k.Send(&g.GPU, planned)
	k.keepsFloors(o)
	s.flights[o.x.Batch] = o
	for i := range o.x.Items {
		x := &o.x.Items[i]
		if !k.mayHold(s, x.Frontend) {
			k.fail("C1: batch %d holds request %d of frontend %d, which has gone or was not announced", o.x.Batch, x.ID, x.Frontend)
			return
		}

		q := s.fronts[x.Frontend].key(x.ID)
		k.End(&q.Life, uint64(x.Frontend), x.ID, "is in a batch")
		q.Running++

		// Budgets count microseconds, rounded down.
		k.Keeps(&planned, uint64(x.Frontend), x.ID, int64(o.sent)+int64(x.Budget)*1000+999)
	}
}

// begins is told when a batch will begin on its GPU.
func (k *checker) begins(o *order, at Time) {
	if k.c.o.faulty() {
		return
	}

	if latest := o.sent.Add(Duration(o.x.Latest)); at > latest || len(o.bad) > 0 {
		k.fail("C8: batch %d begins at %d, its latest start is %d; failures %v", o.x.Batch, at, latest, o.bad)
	}
}

// done is told before the engine takes a Done; it returns the batch when requests of it come back.
func (k *checker) done(s *backSession, m *wire.Done) (back []*order) {
	k.c.note("done", int64(s.b.index)<<32|int64(m.GPU), int64(m.Batch), m.FreeIn)
	o := s.flights[m.Batch]
	if o == nil {
		s.sch.book.strays++
		return nil
	}

	k.ends(o)
	for _, x := range m.Failures {
		k.c.report.Told[x.Reason]++
		if comesBack(x) {
			k.returns(s, &o.x.Items[x.Index])
			back = []*order{o}
		}
	}

	delete(s.flights, m.Batch)
	s.sch.book.served += uint64(len(o.x.Items) - len(m.Failures))

	s.gpus[o.x.GPU].Complete(o.x.Batch, int64(k.c.now.Add(Duration(m.FreeIn))))
	return back
}

// returns is told of a request that is queued again.
func (k *checker) returns(s *backSession, x *wire.Item) {
	f := s.fronts[x.Frontend]
	if f.shut {
		return
	}

	q := f.key(x.ID)
	q.lost = true
	if q.Queued > 0 || f.seatTaken(x.ID) {
		q.Maybe++
		return
	}
	q.Queued = 1
}

// ends takes a batch's requests out of it.
func (k *checker) ends(o *order) {
	// A scheduler that was paused blames nobody for the time that it was away.
	away := max(0, o.s.sch.resumed.Sub(o.sent))
	if last := o.plannedStart.Add(o.plannedExec + watchdog(o.plannedExec) + 200e6 + k.c.o.PollLate + away); k.c.now > last && k.c.o.Unlike == 0 {
		k.fail("C2: batch %d was given up at %d at the latest, but is still under way", o.x.Batch, last)
	}

	for i := range o.x.Items {
		x := &o.x.Items[i]
		o.s.fronts[x.Frontend].key(x.ID).Running--
	}
}

// backendCloses is told before a session ends; its requests are queued again.
func (k *checker) backendCloses(s *backSession) (lost []*order) {
	for _, o := range s.flights {
		k.ends(o)
		lost = append(lost, o)
		for i := range o.x.Items {
			k.returns(s, &o.x.Items[i])
		}
	}
	clear(s.flights)
	return lost
}

// late looks at batches that came back, when the engine has taken them: what is late must have an outcome
// now.
func (k *checker) late(lost []*order) {
	for _, o := range lost {
		for i := range o.x.Items {
			if x := &o.x.Items[i]; !o.s.fronts[x.Frontend].shut {
				k.overdue(o.s.fronts[x.Frontend], x.ID, 0)
			}
		}
	}
}

// answered is told of every end of a call.
func (k *checker) answered(f *front, id uint64, why model.Reason, local bool) {
	if k.c.o.faulty() {
		return
	}
	if late := k.c.now > f.calls[id-1].deadline; why == model.ReasonNone && late || local && why != model.Canceled {
		k.fail("C8: call %d of frontend %d ended %v at %d (by itself: %v), its deadline is %d", id, f.index, why, k.c.now, local, f.calls[id-1].deadline)
	}
}

// obeyed is told when a backend takes an order.
func (k *checker) obeyed(b *back, o *order) {
	if o.epoch < b.epoch && !b.old {
		k.fail("C11: backend %d takes an order of epoch %d after one of epoch %d", b.index, o.epoch, b.epoch)
	}
	b.epoch = o.epoch
}

// checkEnd looks at what is left when everything should have ended, and after all sessions have closed.
func (k *checker) checkEnd() {
	// Every call ends by its deadline and some grace, whatever became of its request.
	for _, f := range k.c.fronts {
		for i := range f.calls {
			if f.calls[i].live && !f.gone {
				k.fail("C2: call %d of frontend %d never ended", i+1, f.index)
			}
		}
	}

	// Counters are compared before the sessions close: closing changes what is queued.
	for _, s := range k.c.schedulers {
		k.endOf(s)
		k.c.report.Strays += int(s.book.strays)
		k.c.report.Twins += int(s.book.twins)
	}

	// When all have left, nothing may be left of them.
	for _, b := range k.c.backs {
		for _, s := range b.sessions {
			if s != nil { // one of the version before has none with a standby
				s.close()
			}
		}
	}

	for _, f := range k.c.fronts {
		for _, s := range f.sessions {
			if s != nil { // it came and went while that scheduler was away
				s.close()
			}
		}
	}

	for _, s := range k.c.schedulers {
		if st := s.e.Stats(); st.Frontends != 0 || len(st.GPUs) != 0 || st.Queued != 0 {
			k.fail("C7: %d frontends, %d gpus and %d requests when all have gone", st.Frontends, len(st.GPUs), st.Queued)
		}
	}
}

// endOf compares what a scheduler counts with what went through its ports.
func (k *checker) endOf(sch *scheduler) {
	book := &sch.book
	waiting, maybe := 0, 0 // junk may have an hour's budget, and its Cancel may be lost
	for _, s := range book.sessions {
		for i := range s.keys {
			x := &s.keys[i]
			ahead := x.Deadline > int64(k.c.now)
			if ahead && !s.shut {
				maybe += x.Maybe
			}
			if x.Queued > 0 && ahead {
				waiting++
			} else if x.Queued > 0 || x.Running != 0 {
				k.fail("C2: request %d of frontend %d never ended: %+v", i+1, s.f.index, *x)
			}
		}
	}

	st := sch.e.Stats()
	served := uint64(0)
	for i := range st.Models {
		served += st.Models[i].Served
	}

	for _, g := range st.GPUs {
		if g.Running {
			k.fail("C7: %s runs a batch when all have ended", g.Name)
		}
	}

	// Where the checker cannot know whether a request had ended when its twin came, the count is a range.
	if st.Queued < waiting || st.Queued > waiting+maybe || served != book.served || st.Strays != book.strays ||
		st.Twins < book.twins || st.Twins > book.twins+book.maybe {
		k.fail("C7: queued %d, served %d, strays %d, twins %d; want %d, %d, %d, %d",
			st.Queued, served, st.Strays, st.Twins, waiting, book.served, book.strays, book.twins)
	}
}
