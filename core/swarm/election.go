package swarm

import (
	"context"
	"errors"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/lead"
)

// stepCandidate makes the candidate check the record periodically.
func (s *scheduler) stepCandidate(life int) {
	c := s.c
	if s.dead || s.life != life {
		return
	}

	// A paused process does nothing; its tick comes when it resumes.
	if s.pausedUntil > c.now {
		c.at(s.pausedUntil, func() { s.stepCandidate(life) })
		return
	}

	s.candidate.Step(context.Background(), true)
	c.after(Duration(lead.Tick), func() { s.stepCandidate(life) })
}

// hearReports makes the candidate process the peers' reports.
func (s *scheduler) hearReports() {
	if s.candidate == nil || s.dead {
		return
	}
	if s.pausedUntil > s.c.now {
		s.c.at(s.pausedUntil, s.hearReports)
		return
	}
	s.candidate.Step(context.Background(), false)
}

// Lead implements lead.Scheduler.
func (s *scheduler) Lead(epoch uint64) {
	s.c.addMark("leads", int64(s.index), int64(epoch), 0)
	if s.c.epochs++; s.c.epochs > 1 {
		s.c.report.Faults[NewLeader]++
	}

	// Tell the peers first: they refuse orders of a scheduler that they do not obey yet.
	s.leads, s.epoch = true, epoch
	s.tellLeader()
	_ = s.engine.SetLeading(true) // it cannot fail with Options.Manual
}

// StandBy implements lead.Scheduler. As in control.Server, the sessions of the former leader end, frontends' first.
func (s *scheduler) StandBy(epoch uint64) {
	led := s.leads
	s.leads, s.epoch = false, max(epoch, s.epoch)
	s.tellLeader()
	_ = s.engine.SetLeading(false)
	if !led {
		return
	}

	s.c.addMark("stands by", int64(s.index), int64(epoch), 0)
	for l := range s.links() {
		if !l.closed {
			l.breakLink(0, retryEvery)
		}
	}
}

// View implements lead.Scheduler.
func (s *scheduler) View() control.View {
	epoch := s.epoch
	var backends []control.Told
	for l := range s.links() {
		switch x := l.session.(type) {
		case *frontSession:
			if !x.closed {
				epoch = max(epoch, x.heard)
			}
		case *backSession:
			if !x.closed {
				backends = append(backends, x.told)
			}
		}
	}
	return control.NewView(epoch, backends)
}

// Changed implements lead.Scheduler; in virtual time nothing waits on it.
func (s *scheduler) Changed() <-chan struct{} { return s.changed }

// tellLeader tells every peer who leads.
func (s *scheduler) tellLeader() {
	for l := range s.links() {
		l.tellLead()
	}
}

// store is one scheduler's access to the election's record.
type store scheduler

var errCut = errors.New("the store cannot be reached")

// Get implements lead.Store.
func (s *store) Get(context.Context) (lead.Record, lead.Revision, error) {
	if s.storeCutUntil > s.c.now {
		return lead.Record{}, "", errCut
	}
	return s.c.record, revisionOf(s.c.revision), nil
}

// Swap implements lead.Store.
func (s *store) Swap(_ context.Context, old lead.Revision, to lead.Record) (lead.Revision, error) {
	switch {
	case s.storeCutUntil > s.c.now:
		return "", errCut

	case old != revisionOf(s.c.revision):
		return "", lead.ErrChanged
	}

	s.c.record = to
	s.c.revision++
	return revisionOf(s.c.revision), nil
}

// Close implements lead.Store.
func (s *store) Close() error { return nil }

func revisionOf(n uint64) lead.Revision {
	if n == 0 {
		return ""
	}
	return lead.Revision(time.Duration(n).String())
}
