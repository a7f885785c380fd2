package swarm

import (
	"log/slog"
	"time"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/lead"
	"downbeat.dev/core/sched"
)

// scheduler is one process with an engine that leads or stands by. The engine and the election are the production
// code; the simulation carries their messages.
type scheduler struct {
	c            *Cluster
	index        int
	engine       *engine.Engine
	wake, turnAt Time // wake-up that the engine asked for, and time of the turn that it gets
	dead         bool
	pausedUntil  Time // until then it does nothing
	resumedAt    Time // when it last resumed after a pause
	life         int
	polls        int // completed polls: the engine had nothing more to do at once

	leads         bool
	epoch         uint64
	candidate     *lead.Candidate // nil: a single scheduler
	changed       chan struct{}
	storeCutUntil Time // until then it cannot reach the store
	book          book // for the checker
}

// learnShare is the share of GPU time that learners may buy, as in the default configuration.
const learnShare = 0.15

// startLife begins a new life of a scheduler, without any earlier state.
func (s *scheduler) startLife() error {
	c := s.c
	e, err := engine.New(engine.Options{Manual: true, Clock: c, Cores: c.o.Cores, Partitions: c.o.Partitions, QueueMax: c.o.QueueMax, GPUs: gpusMost,
		RequestsMax: c.o.LiveMax, Ctrl: time.Duration(c.o.Ctrl), Data: time.Duration(c.o.Data), Prompt: c.o.Prompt, Floors: c.floors, Epoch: time.Duration(c.o.Epoch), LearnShare: learnShare})
	if err != nil {
		return err
	}

	// Nothing of the former life remains, not even the checker's account.
	s.engine, s.wake, s.turnAt = e, sched.Never, sched.Never
	s.dead, s.pausedUntil, s.resumedAt, s.leads, s.epoch = false, 0, 0, false, 0
	s.book = book{sessions: map[uint32]*frontSession{}}
	s.life++

	// A single scheduler leads from the start, without an election.
	s.candidate, s.leads = nil, len(c.schedulers) == 1
	if len(c.schedulers) > 1 {
		_ = s.engine.SetLeading(false)
		s.changed = make(chan struct{}, 1)
		s.candidate = &lead.Candidate{Store: (*store)(s), Scheduler: s, Name: "s" + string(rune('0'+s.index)), Logger: slog.New(slog.DiscardHandler)}
		s.stepCandidate(s.life)
	}
	return nil
}

// gpusMost is the most GPUs that an engine accepts, including those of sessions that have not noticed their end. The
// table of GPUs is most of an engine's memory.
const gpusMost = 4096

// connectedGPUs returns the number of connected GPUs.
func (s *scheduler) connectedGPUs() (n int) {
	for _, b := range s.c.backs {
		if l := b.links[s.index]; l != nil && !l.closed {
			n += len(b.hello.GPUs)
		}
	}
	return n
}

// shareLearned sends the leader's learned state to the standbys every second.
func (c *Cluster) shareLearned() {
	for _, s := range c.schedulers {
		if s.dead || !s.leads || s.pausedUntil > c.now {
			continue
		}

		learned, gpus := s.engine.Learned(), s.connectedGPUs()
		for _, to := range c.schedulers {
			if to != s && !to.dead && to.pausedUntil <= c.now && !to.leads {
				c.happens(Snapshot, int64(to.index), int64(len(learned)))
				to.engine.Learn(learned)
				to.candidate.HearGPUs(gpus)
			}
		}
	}
	c.after(1e9, c.shareLearned)
}

// sharePlans sends the leader's plan to the standbys soon after it has changed.
func (c *Cluster) sharePlans() {
	s := c.leader()
	if s != nil && s.engine.PlanRecord() != nil {
		for _, to := range c.schedulers {
			if to != s && !to.dead && to.pausedUntil <= c.now && !to.leads {
				_ = to.engine.HearPlan(s.engine.PlanRecord())
			}
		}
	}
	c.after(50e6, c.sharePlans)
}

// die ends a scheduler's process. Another one starts in its place after a while.
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

	// The kernel closes its connections: peers notice soon, and the checker's account ends.
	for l := range s.links() {
		if !l.closed {
			l.noteDeath()
			l.reconnectAfter(c.within(0, 200e6))
		}
	}

	// A new process starts in its place.
	_ = s.engine.Close() // it cannot fail with Options.Manual
	c.after(back, s.revive)
}

func (s *scheduler) revive() {
	if !s.dead {
		return
	}
	s.c.addMark("scheduler starts", int64(s.index), 0, 0)
	if err := s.startLife(); err != nil {
		s.c.check.fail("a scheduler that starts again: %v", err)
	}
}
