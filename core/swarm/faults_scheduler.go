package swarm

// pause stops a scheduler's process for a while. Peers that hear nothing from it for too long give it up.
func (s *scheduler) pause(d Duration) {
	c := s.c
	if s.dead || s.pausedUntil > c.now {
		return
	}

	c.happens(LeaderPauses, int64(s.index), int64(d))
	s.pausedUntil = c.now.Add(d)
	s.resumedAt = s.pausedUntil
	// After a long pause, its peers give up their links and connect to others.
	if d > silenceMost {
		c.after(silenceMost, func() { s.breakLinks(func() bool { return true }, 0) })
	}
}

// breakLinks breaks a scheduler's links with the peers for which which returns true. They connect again after wait at the
// earliest. The engine notices when it is not paused.
func (s *scheduler) breakLinks(which func() bool, wait Duration) {
	c := s.c

	// A paused engine notices nothing until it resumes.
	notice := max(0, s.pausedUntil.Sub(c.now))
	for l := range s.links() {
		if l.up && which() {
			l.p.barredUntil[s.index] = c.now.Add(wait)
			l.breakLink(notice+c.within(0, 50e6), c.within(0, 50e6))
		}
	}
}

// isolate blocks a scheduler's links with some or all of its peers for a while.
func (c *Cluster) isolate(s *scheduler) {
	share, d := []float64{0.3, 0.7, 1}[c.rng.IntN(3)], c.within(0, 3e9)
	c.happens(Isolation, int64(s.index), int64(share*100))

	// Both ends first see a slow network, then a lost link after the silence limit of package control.
	c.after(silenceMost, func() { s.breakLinks(func() bool { return c.rng.Float64() < share }, d) })
}
