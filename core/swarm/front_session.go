package swarm

import (
	"fmt"
	"slices"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// frontSession is a frontend's session with the engine. It implements engine.FrontendPort.
type frontSession struct {
	link
	f        *front
	h        *engine.Frontend
	ids      []uint32     // of the models, by number; the engine's id plus one
	ready    []bool       // by model's number: some backend serves it
	families []model.Info // announced families, by number; an old frontend knows none
	heard    uint64       // epoch that the frontend last sent to the scheduler
	keys     []key        // for the checker: the state of each id
	swept    int          // for the checker: the engine's poll count at which nothing of a closed session is queued
	// For the checker: the id submitted last at each entry of the engine's id window.
	idWindow map[uint64]uint64
}

// openSession opens a session with a scheduler.
func (f *front) openSession(sch *scheduler) {
	c, n := f.c, len(f.c.models)
	s := &frontSession{f: f, idWindow: map[uint64]uint64{}, ids: make([]uint32, n), ready: make([]bool, n), families: make([]model.Info, n)}
	s.link = f.newLink(sch, s)
	h, err := sch.engine.OpenFrontend(wire.FrontendHello{Version: wire.Version, Name: fmt.Sprint("f", f.index), DataAddr: "f", Window: c.windowSize()}, s)
	if err != nil {
		c.check.fail("OpenFrontend: %v", err)
		return
	}

	// The checker finds the session of a request by its number on the wire.
	s.h = h
	sch.book.sessions[h.Number()] = s
	c.addMark("frontend", int64(f.index), int64(h.Number()), int64(sch.index))

	f.noteSession(&s.link)
}

// obeyedSession returns the session with the obeyed scheduler, or nil.
func (f *front) obeyedSession() *frontSession {
	if f.obeyed < 0 {
		return nil
	}

	return f.links[f.obeyed].session.(*frontSession)
}

func (s *frontSession) noteFollow(m wire.Follow) { s.heard = m.Epoch }

func (s *frontSession) noteBreak() {
	s.f.c.addMark("frontend's link breaks", int64(s.f.index), int64(s.h.Number()), int64(s.sch.index))
}

func (s *frontSession) closeInEngine() {
	c, long := s.f.c, false
	if !s.isOrphaned() {
		// Look at the queues while the session is open: afterwards its requests are no longer in them.
		long = c.check.hasLongQueue(s)
		s.h.Close()
	}
	c.check.afterFrontendClose(s, long)
}

func (s *frontSession) noteDeath() { s.f.c.check.afterFrontendClose(s, false) }

// Models implements engine.FrontendPort.
func (s *frontSession) Models(m []model.Info) {
	for i := range m {
		s.noteModel(&m[i])
	}

	// A model may have become ready for calls that wait for it.
	if s.isObeyed() {
		s.f.submitSpared()
	}
}

// Outcomes implements engine.FrontendPort.
func (s *frontSession) Outcomes(m []wire.Outcome) {
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
		if !s.isObeyed() {
			return // a frontend ignores a scheduler that it does not obey
		}
		for i := range all {
			s.f.endByOutcome(all[i].ID, all[i].Reason)
		}
	})
}

// Answers implements engine.FrontendPort. Simulated frontends send no commands.
func (s *frontSession) Answers([]wire.ModelAnswer) {}
