package swarm

import (
	"time"

	"downbeat.dev/core/limits"
)

// runRecovery runs until everything must have ended. Learners rest in the middle of the recovery: their steps on idle
// GPUs would be four events of five, and would check nothing that the beginning and the end do not.
func (c *Cluster) runRecovery() {
	end := c.now.Add(c.recoveryTime())
	c.runUntil(c.now.Add(spareAfter))
	c.restLearners()
	c.runUntil(end.Add(-spareBefore))
	c.wakeLearners()
	c.runUntil(end)
}

// endFaults ends all faults: hanging backends restart, absent peers return.
func (c *Cluster) endFaults() {
	c.calm = true
	c.addMark("faults are over", 0, 0, 0)
	for _, s := range c.schedulers {
		s.pausedUntil, s.resumedAt, s.storeCutUntil = min(s.pausedUntil, c.now), min(s.resumedAt, c.now), 0
		s.revive()
	}

	// A hang may last longer than the recovery.
	for _, b := range c.backs {
		if b.hungUntil > c.now {
			b.die(0)
		}

		b.revive()
		b.slow = 1
		clear(b.broken)
		clear(b.barredUntil)
		b.connectAll()
	}

	for _, f := range c.fronts {
		f.darkUntil = 0
		clear(f.barredUntil)
		f.connectAll()
	}
}

// recoveryTime returns the time after the faults' end by which everything has ended: the longest watchdog and its
// consequences, plus an election if there are standbys.
func (c *Cluster) recoveryTime() Duration {
	most := time.Duration(0)
	for _, b := range c.backs {
		for i := range b.hello.Models {
			t := b.hello.Models[i].Profile
			most = max(most, t[len(t)-1])
		}
	}

	d := watchdogAfter(Duration(most)) + 1e9
	if len(c.schedulers) > 1 {
		d += electionMost
	}
	return d
}

// electionMost is the longest election: a lease expires, and the last standby notices.
const electionMost Duration = 8e9

// watchdogAfter returns how long after its planned end a batch may be missing before its backend is cut.
func watchdogAfter(exec Duration) Duration {
	return Duration(limits.Engine(time.Duration(exec))) + 100e6 + cutMost
}
