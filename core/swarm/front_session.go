package swarm

import (
	"slices"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

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

// obeyedSession returns the session with the obeyed scheduler, or nil.
func (f *front) obeyedSession() *session {
	if f.obeyed < 0 {
		return nil
	}

	return f.sessions[f.obeyed]
}

// tellLead tells the frontend who leads.
func (s *session) tellLead() {
	if sch := s.sch; sch.candidate != nil && !s.f.old {
		m := wire.Lead{Epoch: sch.epoch, Leads: sch.leads, GPUs: uint32(sch.connectedGPUs())}
		s.f.c.sendReliably(&s.link, fromEngine, func() { s.f.noteLead(sch.index, m) })
	}
}

// tellFollow tells scheduler i which scheduler the frontend obeys.
func (f *front) tellFollow(i int, m wire.Follow) {
	if s := f.sessions[i]; s != nil && s.sch.candidate != nil && !f.old {
		f.c.sendReliably(&s.link, toEngine, func() {
			s.heard = m.Epoch
			s.sch.hearReports()
		})
	}
}

// breakLink cuts the connection. Both ends notice later, and the frontend connects again.
func (s *session) breakLink(engine, peer Duration) {
	c := s.f.c
	s.up = false
	c.addMark("frontend's link breaks", int64(s.f.index), int64(s.h.Number()), int64(s.sch.index))
	c.after(engine, s.close)
	s.reconnectAfter(peer)
}

// reconnectAfter lets the frontend notice the lost connection after a delay and connect again.
func (s *session) reconnectAfter(after Duration) {
	f := s.f
	s.up = false
	f.c.after(after, func() {
		if f.sessions[s.sch.index] == s && !f.gone {
			f.noteLost(s.sch.index)
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

	// Look at the queues while the session is open: afterwards its requests are no longer in them.
	long := !s.isOrphaned() && s.f.c.check.hasLongQueue(s)
	if !s.isOrphaned() {
		s.h.Close()
	}
	s.f.c.check.afterFrontendClose(s, long)
}

// Models implements engine.FrontendPort.
func (s *session) Models(m []model.Info) {
	for i := range m {
		s.noteModel(&m[i])
	}

	// A model may have become ready for calls that wait for it.
	if s.f.obeyedSession() == s {
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
		if s.f.obeyedSession() != s {
			return // a frontend ignores a scheduler that it does not obey
		}
		for i := range all {
			s.f.endByOutcome(all[i].ID, all[i].Reason)
		}
	})
}

// Answers implements engine.FrontendPort. Simulated frontends send no commands.
func (s *session) Answers([]wire.ModelAnswer) {}
