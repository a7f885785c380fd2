package sim

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/lead"
	"downbeat.dev/core/sched"
)

// scheduler is one process with an engine, which leads or stands by. The engine and the election are the production
// code; what carries messages between them and to peers is the simulation's.
type scheduler struct {
	c            *Cluster
	index        int
	e            *engine.Engine
	wake, polled Time // what the engine asked for, and when it gets it
	dead         bool
	paused       Time // until then it does nothing
	resumed      Time // when it went on last
	life         int
	polls        int // that have ended: the engine had nothing more to do at once

	leads     bool
	epoch     uint64
	candidate *lead.Candidate // nil: it is alone
	changed   chan struct{}
	storeCut  Time // until then it cannot reach the store
	book      book // the checker's
}

// learnShare is what learners may buy of the GPUs' time: as where nothing else is configured.
const learnShare = 0.15

// startLife begins a life of a scheduler: nothing of an earlier one is left.
func (s *scheduler) startLife() error {
	c := s.c
	e, err := engine.New(engine.Options{Manual: true, Clock: c, Cores: c.o.Cores, Partitions: c.o.Partitions, QueueMax: c.o.QueueMax, GPUs: gpusMost,
		RequestsMax: c.o.LiveMax, Ctrl: time.Duration(c.o.Ctrl), Data: time.Duration(c.o.Data), Prompt: c.o.Prompt, Floors: c.floors, Epoch: time.Duration(c.o.Epoch), LearnShare: learnShare})
	if err != nil {
		return err
	}

	s.e, s.wake, s.polled = e, sched.Never, sched.Never

	s.dead, s.paused, s.resumed, s.leads, s.epoch = false, 0, 0, false, 0
	s.book = book{sessions: map[uint32]*session{}}
	s.life++

	// Alone it leads from the start, and there is no election.
	s.candidate, s.leads = nil, len(c.schedulers) == 1
	if len(c.schedulers) > 1 {
		_ = s.e.SetLeading(false)
		s.changed = make(chan struct{}, 1)
		s.candidate = &lead.Candidate{Store: (*store)(s), Scheduler: s, Name: "s" + string(rune('0'+s.index)), Logger: slog.New(slog.DiscardHandler)}
		s.stepCandidate(s.life)
	}
	return nil
}

// gpusMost is how many GPUs an engine takes: sessions that have not noticed their end hold some besides. Its table is
// most of an engine's memory.
const gpusMost = 4096

// stepCandidate has the candidate look at the record, again and again.
func (s *scheduler) stepCandidate(life int) {
	c := s.c
	if s.dead || s.life != life {
		return
	}

	// A paused process does nothing at all; its tick comes when it goes on.
	if s.paused > c.now {
		c.at(s.paused, func() { s.stepCandidate(life) })
		return
	}
	s.candidate.Step(context.Background(), true)
	c.after(Duration(lead.Tick), func() { s.stepCandidate(life) })
}

// step has the candidate look at what the peers tell.
func (s *scheduler) step() {
	if s.candidate == nil || s.dead {
		return
	}
	if s.paused > s.c.now {
		s.c.at(s.paused, s.step)
		return
	}
	s.candidate.Step(context.Background(), false)
}

// Lead implements lead.Scheduler.
func (s *scheduler) Lead(epoch uint64) {
	s.c.note("leads", int64(s.index), int64(epoch), 0)
	if s.c.epochs++; s.c.epochs > 1 {
		s.c.report.Faults[NewLeader]++
	}

	s.leads, s.epoch = true, epoch
	s.tellLeader()
	_ = s.e.SetLeading(true) // it cannot fail with Options.Manual
}

// StandBy implements lead.Scheduler: as in control.Server, sessions of one that led end, frontends' first.
func (s *scheduler) StandBy(epoch uint64) {
	led := s.leads
	s.leads, s.epoch = false, max(epoch, s.epoch)
	s.tellLeader()
	_ = s.e.SetLeading(false)
	if !led {
		return
	}

	s.c.note("stands by", int64(s.index), int64(epoch), 0)
	for _, f := range s.c.fronts {
		if x := f.sessions[s.index]; x != nil && !x.shut {
			x.breakLink(0, retryEvery)
		}
	}
	for _, b := range s.c.backs {
		if x := b.sessions[s.index]; x != nil && !x.closed {
			x.breakLink(0, retryEvery)
		}
	}
}

// View implements lead.Scheduler.
func (s *scheduler) View() control.View {
	epoch := s.epoch
	for _, f := range s.c.fronts {
		if x := f.sessions[s.index]; x != nil && !x.shut {
			epoch = max(epoch, x.heard)
		}
	}

	var backends []control.Told
	for _, b := range s.c.backs {
		if x := b.sessions[s.index]; x != nil && !x.closed {
			backends = append(backends, x.told)
		}
	}
	return control.NewView(epoch, backends)
}

// Changed implements lead.Scheduler; nobody waits for it in virtual time.
func (s *scheduler) Changed() <-chan struct{} { return s.changed }

// tellLeader tells every peer who leads.
func (s *scheduler) tellLeader() {
	for _, f := range s.c.fronts {
		if x := f.sessions[s.index]; x != nil {
			x.tellLead()
		}
	}
	for _, b := range s.c.backs {
		if x := b.sessions[s.index]; x != nil {
			x.tellLead()
		}
	}
}

// gpus is how many GPUs are connected.
func (s *scheduler) gpus() (n int) {
	for _, b := range s.c.backs {
		if x := b.sessions[s.index]; x != nil && !x.closed {
			n += len(b.hello.GPUs)
		}
	}
	return n
}

// snapshot hands what the leader has learned to those that stand by, every second.
func (c *Cluster) snapshot() {
	for _, s := range c.schedulers {
		if s.dead || !s.leads || s.paused > c.now {
			continue
		}

		learned, gpus := s.e.Learned(), s.gpus()
		for _, to := range c.schedulers {
			if to != s && !to.dead && to.paused <= c.now && !to.leads {
				c.happens(Snapshot, int64(to.index), int64(len(learned)))
				to.e.Learn(learned)
				to.candidate.HearGPUs(gpus)
			}
		}
	}
	c.after(1e9, c.snapshot)
}

// sharePlans hands the leader's plan to those that stand by, soon after it has changed.
func (c *Cluster) sharePlans() {
	s := c.leader()
	if s != nil && s.e.PlanRecord() != nil {
		for _, to := range c.schedulers {
			if to != s && !to.dead && to.paused <= c.now && !to.leads {
				_ = to.e.HearPlan(s.e.PlanRecord())
			}
		}
	}
	c.after(50e6, c.sharePlans)
}

// die ends a scheduler's process; another one starts in its place after a while.
func (s *scheduler) die(back Duration) {
	c := s.c
	if s.dead {
		return
	}

	if s.leads {
		c.happens(LeaderDies, int64(s.index), int64(back))
	} else {
		c.happens(StandbyDies, int64(s.index), int64(back))
	}
	s.dead, s.leads = true, false

	// The kernel closes its connections: peers hear of it soon, and its own accounts end.
	for _, f := range c.fronts {
		if x := f.sessions[s.index]; x != nil && !x.shut {
			c.check.frontendClosed(x, false)
			x.drop(c.within(0, 200e6))
		}
	}
	for _, b := range c.backs {
		if x := b.sessions[s.index]; x != nil && !x.closed {
			c.check.backendCloses(x)
			x.closed = true
			x.drop(c.within(0, 200e6))
		}
	}

	_ = s.e.Close() // it cannot fail with Options.Manual
	c.after(back, s.revive)
}

func (s *scheduler) revive() {
	if !s.dead {
		return
	}
	s.c.note("scheduler starts", int64(s.index), 0, 0)
	if err := s.startLife(); err != nil {
		s.c.check.fail("a scheduler that starts again: %v", err)
	}
}

// store is the record as one scheduler reaches it.
type store scheduler

var errCut = errors.New("the store cannot be reached")

// Get implements lead.Store.
func (s *store) Get(context.Context) (lead.Record, lead.Revision, error) {
	if s.storeCut > s.c.now {
		return lead.Record{}, "", errCut
	}
	return s.c.record, revision(s.c.revision), nil
}

// Swap implements lead.Store.
func (s *store) Swap(_ context.Context, old lead.Revision, to lead.Record) (lead.Revision, error) {
	switch {
	case s.storeCut > s.c.now:
		return "", errCut

	case old != revision(s.c.revision):
		return "", lead.ErrChanged
	}

	s.c.record = to
	s.c.revision++
	return revision(s.c.revision), nil
}

// Close implements lead.Store.
func (s *store) Close() error { return nil }

func revision(n uint64) lead.Revision {
	if n == 0 {
		return ""
	}
	return lead.Revision(time.Duration(n).String())
}
