package swarm

import (
	"downbeat.dev/core/invariants"
	"downbeat.dev/core/wire"
)

// seenGPU is the state of a GPU that the engine must have.
type seenGPU struct {
	invariants.GPU
	step uint64 // number of the last ordered spare step; 0: it has ended
}

// mayHold reports whether a batch may hold a request of this frontend's session.
func (k *checker) mayHold(s *backSession, number uint32) bool {
	f := s.fronts[number]
	switch {
	case f == nil:
		return false
	case f.closed:
		return f.sch.polls < f.swept
	}
	return s.peers[number] || !f.up
}

// notePeer records a frontend that the engine announces to a backend.
func (k *checker) notePeer(s *backSession, m *wire.Peer) {
	if m.DataAddr == "" {
		delete(s.peers, m.Frontend)
	} else {
		s.peers[m.Frontend] = true
	}
}

// checkOrder checks a batch that the engine orders.
func (k *checker) checkOrder(o *order) {
	s, n := o.s, len(o.x.Items)
	k.c.addMark("execute", int64(s.b.index)<<32|int64(o.x.GPU), int64(o.x.Batch), int64(n))
	if s.closed || s.flights[o.x.Batch] != nil || int(o.x.GPU) >= len(s.gpus) || int(o.x.Model) >= len(s.b.hello.Models) {
		k.fail("C1: backend %d (closed: %v) got %+v", s.b.index, s.closed, o.x)
		return
	}

	// The engine plans with the profile of its sub-cluster, which is at least that of its fastest backend. Batch
	// sizes outside the profile are the observer's to report.
	table := k.c.leastProfile(s.b, o.x.Model)

	// An order's times count from its departure; the observer uses one clock.
	o.plannedStart, o.plannedExec = o.sent.Add(Duration(o.x.Start)), Duration(table[min(max(n, 1), len(table))-1])
	planned := invariants.Batch{ID: o.x.Batch, Size: n, Most: len(table), Arrives: int64(o.sent), Start: int64(o.plannedStart),
		Latest: int64(o.sent.Add(Duration(o.x.Latest))), Finish: int64(o.plannedStart.Add(o.plannedExec))}

	g := &s.gpus[o.x.GPU]
	k.Send(&g.GPU, planned)
	k.checkBatchFloors(o)
	s.flights[o.x.Batch] = o
	slow := s.b.isSlow()
	for i := range o.x.Items {
		x := &o.x.Items[i]
		if !k.mayHold(s, x.Frontend) {
			k.fail("C1: batch %d holds request %d of frontend %d, which has gone or was not announced", o.x.Batch, x.ID, x.Frontend)
			return
		}

		if slow {
			s.fronts[x.Frontend].f.calls[x.ID-1].slow = true
		}
		q := s.fronts[x.Frontend].key(x.ID)
		// Budgets are in microseconds, rounded down.
		deadline := int64(o.sent) + int64(x.Budget)*1000 + 999
		o.deadlines = append(o.deadlines, min(q.Latest(), deadline))
		k.End(&q.Life, uint64(x.Frontend), x.ID, "is in a batch")
		q.Running++
		k.Keeps(&planned, uint64(x.Frontend), x.ID, deadline)
	}
}

// checkStart checks the time at which a batch will begin on its GPU.
func (k *checker) checkStart(o *order, at Time) {
	// A batch behind one that takes longer than planned begins late.
	if k.c.o.mayDelay() || o.s.b.isSlow() {
		return
	}

	if latest := o.sent.Add(Duration(o.x.Latest)); at > latest || len(o.bad) > 0 {
		k.fail("C8: batch %d begins at %d, its latest start is %d; failures %v", o.x.Batch, at, latest, o.bad)
	}
}

// beforeDone runs before the engine takes a Done. It returns the batch if some of its requests come back.
func (k *checker) beforeDone(s *backSession, m *wire.Done) (back []*order) {
	k.c.addMark("done", int64(s.b.index)<<32|int64(m.GPU), int64(m.Batch), m.FreeIn)
	o := s.flights[m.Batch]
	if o == nil {
		s.sch.book.strays++
		return nil
	}

	k.endBatch(o)
	for _, x := range m.Failures {
		k.c.report.Told[x.Reason]++
		if comesBack(x) {
			k.noteReturn(o, int(x.Index))
			back = []*order{o}
		}
	}

	delete(s.flights, m.Batch)
	s.sch.book.served += uint64(len(o.x.Items) - len(m.Failures))

	s.gpus[o.x.GPU].Complete(o.x.Batch, int64(k.c.now.Add(Duration(m.FreeIn))))
	return back
}

// noteReturn records that request i of a batch is queued again, with the deadline of the copy that the batch held.
func (k *checker) noteReturn(o *order, i int) {
	x := &o.x.Items[i]
	f := o.s.fronts[x.Frontend]
	if f.closed {
		return
	}

	q := f.key(x.ID)
	q.lost = true
	if q.Queued > 0 || f.isOverwritten(x.ID) {
		q.Suspect(o.deadlines[i])
		return
	}
	q.Queued, q.Deadline = 1, o.deadlines[i]
}

// endBatch checks the end of a batch, which no longer runs its requests.
func (k *checker) endBatch(o *order) {
	// Do not count the time during which the scheduler was paused.
	away := max(0, o.s.sch.resumedAt.Sub(o.sent))
	if last := o.plannedStart.Add(o.plannedExec + watchdogAfter(o.plannedExec) + 200e6 + k.c.o.PollLate + away); k.c.now > last && k.c.o.Unlike == 0 {
		k.fail("C2: batch %d was given up at %d at the latest, but is still under way", o.x.Batch, last)
	}

	for i := range o.x.Items {
		x := &o.x.Items[i]
		o.s.fronts[x.Frontend].key(x.ID).Running--
	}
}

// beforeBackendClose runs before a session ends. Its requests are queued again.
func (k *checker) beforeBackendClose(s *backSession) (lost []*order) {
	s.closed = true
	for _, o := range s.flights {
		k.endBatch(o)
		lost = append(lost, o)
		for i := range o.x.Items {
			k.noteReturn(o, i)
		}
	}
	clear(s.flights)
	return lost
}

// checkLate runs when the engine has taken batches back: requests past their deadline must have an outcome by now.
func (k *checker) checkLate(lost []*order) {
	for _, o := range lost {
		for i := range o.x.Items {
			if x := &o.x.Items[i]; !o.s.fronts[x.Frontend].closed {
				k.checkOverdue(o.s.fronts[x.Frontend], x.ID, 0)
			}
		}
	}
}

// checkObeyed runs when a backend takes an order.
func (k *checker) checkObeyed(b *back, o *order) {
	if o.epoch < b.epoch && !b.old {
		k.fail("C11: backend %d takes an order of epoch %d after one of epoch %d", b.index, o.epoch, b.epoch)
	}
	b.epoch = o.epoch
}
