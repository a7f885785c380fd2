package swarm

import "downbeat.dev/core/sched"

// momentMost bounds the events and turns at one time. A leader that dies under load causes thousands.
const momentMost = 1_000_000

// runUntil processes events until a time and polls each engine when it is due.
func (c *Cluster) runUntil(until Time) {
	for c.check.err == nil {
		s := c.nextPoll()
		at := min(c.queue.nextTime(), s.pollAt())
		if at > until {
			c.now = until
			return
		}
		if at > c.now {
			c.now, c.moment = at, 0
		}
		if c.moment++; c.moment > momentMost {
			c.check.fail("C12: %d events and turns at one moment, and no end", c.moment)
			return
		}

		// If an engine and an event are due at the same time, a coin decides the order, so that seeds try both.
		if c.queue.nextTime() <= c.now && (s.pollAt() > c.now || c.rng.IntN(2) == 0) {
			c.queue.takeFirst()()
			continue
		}
		s.pollEngine()
	}
}

// nextPoll returns the scheduler whose engine is due first.
func (c *Cluster) nextPoll() *scheduler {
	first := c.schedulers[0]
	for _, s := range c.schedulers {
		if s.dead {
			continue
		}

		// Calls may have changed the engine's next wake-up. Draw its delay once per change.
		if wake := s.engine.NextWake(); wake != s.wake {
			s.setNextTurn(wake)
		}
		if s.pollAt() < first.pollAt() {
			first = s
		}
	}
	return first
}

// pollAt returns the time of the engine's next turn.
func (s *scheduler) pollAt() Time {
	if s.dead {
		return sched.Never
	}
	return max(s.turnAt, s.pausedUntil)
}

// setNextTurn plans the next turn at the wake-up plus a random delay. A turn that was due earlier does not become later.
func (s *scheduler) setNextTurn(wake Time) {
	c := s.c
	at := max(c.now, wake)
	if wake != sched.Never && c.o.PollLate > 0 && !c.calm {
		at = at.Add(Duration(c.rng.Int64N(int64(c.o.PollLate))))
	}
	if wake <= s.turnAt && s.turnAt != sched.Never {
		at = min(at, s.turnAt)
	}
	s.wake, s.turnAt = wake, at
}

// pollEngine gives the engine turns until it asks for a later one, as its loops do.
func (s *scheduler) pollEngine() {
	c := s.c
	for spins := 0; spins == 0 || s.engine.NextWake() <= c.now; spins++ {
		// Loops are independent of each other, so every order must work.
		if c.o.ShufflePolls {
			loops := s.engine.Loops()
			for _, i := range c.rng.Perm(len(loops)) {
				loops[i].Poll(c.now)
			}
		}
		s.engine.Poll(c.now)

		// An engine that always asks for another turn at once would stop virtual time.
		if spins == 100 {
			c.check.fail("C12: the engine was polled %d times at %d and still asks for %d", spins, c.now, s.engine.NextWake())
			return
		}
	}

	s.wake, s.turnAt = sched.Never, sched.Never
	s.polls++
}
