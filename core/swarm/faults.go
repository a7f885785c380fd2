package swarm

import "time"

// scheduleFaults draws the times and kinds of faults. Each closure picks its victim when its time comes, so that a fault
// meets whatever lives then.
func (c *Cluster) scheduleFaults(span Duration) {
	some := func(n int, do func()) {
		for range n {
			c.after(c.within(0, span), do)
		}
	}

	// Faults of backends, frontends and their links.
	some(c.o.Hangs, c.hangSome)
	some(c.o.Deaths, func() { c.someBack().die(c.within(0, 500e6)) })
	some(c.o.Breaks, c.breakSome)

	some(c.o.Vanishes, func() {
		if f := c.someFront(); !f.gone {
			f.crash()
		}
	})
	some(c.o.Slowdowns, func() { c.slowSome(span) })
	some(c.o.BrokenGPUs, func() {
		b := c.someBack()
		g := c.rng.IntN(len(b.broken))
		c.happens(BrokenGPU, int64(b.index), int64(g))
		b.broken[g] = true
	})

	some(c.o.DarkFronts, func() {
		f := c.someFront()
		c.happens(DarkFrontend, int64(f.index), 0)
		f.darkUntil = c.now.Add(c.within(0, span))
	})
	some(c.o.Darks, func() { c.blockSomeLink(c.within(0, 800e6)) })
	some(c.o.SlowLinks, func() { c.slowLink(span) })

	// Faults of schedulers and of the store that their election uses.
	some(c.o.LeaderDeaths, func() { c.someScheduler().die(c.within(0, 2e9)) })
	some(c.o.LeaderPauses, func() { c.someScheduler().pause(c.within(0, 2e9)) })

	some(c.o.StoreCuts, func() {
		s := c.someScheduler()
		c.happens(StoreCut, int64(s.index), 0)
		s.storeCutUntil = c.now.Add(c.within(0, 8e9))
	})
	some(c.o.Isolations, func() { c.isolate(c.someScheduler()) })
}

func (c *Cluster) someBack() *back   { return c.backs[c.rng.IntN(len(c.backs))] }
func (c *Cluster) someFront() *front { return c.fronts[c.rng.IntN(len(c.fronts))] }

// someScheduler returns the leader in half of the cases, else a random scheduler.
func (c *Cluster) someScheduler() *scheduler {
	if c.rng.IntN(2) == 0 {
		for _, s := range c.schedulers {
			if s.leads && !s.dead {
				return s
			}
		}
	}
	return c.schedulers[c.rng.IntN(len(c.schedulers))]
}

// hangSome makes a backend hang: for a short time, or until the watchdog ends it.
func (c *Cluster) hangSome() {
	b := c.someBack()
	d, f := c.within(0, 200e6), Hang
	if c.rng.IntN(3) == 0 {
		d, f = 30e9, LongHang
	}

	if !b.dead && b.hungUntil <= c.now {
		c.happens(f, int64(b.index), int64(d))
		b.hang(d)
	}
}

// breakSome breaks the link of a backend or a frontend.
func (c *Cluster) breakSome() {
	// If no backend has a link, try a frontend.
	k := c.rng.IntN(len(c.schedulers))
	if b := c.someBack(); c.rng.IntN(2) == 0 && b.sessions[k] != nil && b.sessions[k].up {
		c.happens(BackendLinkBreaks, int64(b.index), int64(k))
		b.sessions[k].breakLink(c.within(0, 200e6), c.within(0, 300e6))
		return
	}

	if f := c.someFront(); f.sessions[k] != nil && f.sessions[k].up {
		c.happens(FrontendLinkBreaks, int64(f.index), int64(k))
		f.sessions[k].breakLink(c.within(0, 200e6), c.within(0, 200e6))
	}
}

// slowSome makes a backend's GPUs slower for a while.
func (c *Cluster) slowSome(span Duration) {
	b := c.someBack()

	b.slow = 1 + 9*c.rng.Float64()
	c.happens(Slowdown, int64(b.index), int64(b.slow*100))
	c.after(c.within(0, span), func() { b.slow = 1 })
}

// blockSomeLink blocks a link for a while.
func (c *Cluster) blockSomeLink(d Duration) {
	k, both := c.rng.IntN(len(c.schedulers)), c.rng.IntN(2) == 0
	if b := c.someBack(); c.rng.IntN(2) == 0 && b.sessions[k] != nil && b.sessions[k].up {
		s := b.sessions[k]
		c.blockLink(&s.link, d, both, func() { s.breakLink(c.within(0, 50e6), c.within(0, 50e6)) })
		return
	}

	if f := c.someFront(); f.sessions[k] != nil && f.sessions[k].up {
		s := f.sessions[k]
		c.blockLink(&s.link, d, both, func() { s.breakLink(c.within(0, 50e6), c.within(0, 50e6)) })
	}
}

// slowLink slows the links of one peer for a while.
func (c *Cluster) slowLink(span Duration) {
	extra, until := c.within(0, 20e6), c.now.Add(c.within(0, span))
	c.happens(SlowLink, int64(extra), int64(until))
	slow := func(l *link) { l.slow, l.slowUntil = extra, until }

	// Slow all links of one peer: the peer's network is slow, not one connection.
	if c.rng.IntN(2) == 0 {
		for _, s := range c.someBack().sessions {
			if s != nil {
				slow(&s.link)
			}
		}
		return
	}

	for _, s := range c.someFront().sessions {
		if s != nil {
			slow(&s.link)
		}
	}
}

// crash ends a frontend without notice, and starts another one.
func (f *front) crash() {
	c := f.c
	c.happens(FrontendVanishes, int64(f.index), 0)

	// Schedulers notice its end only after a delay.
	f.gone = true
	for _, s := range f.sessions {
		if s != nil {
			s.up = false
			c.after(c.within(0, 200e6), s.close)
		}
	}
	c.newFront()
}

// measureRoundTrips measures round trips, as sessions do.
func (c *Cluster) measureRoundTrips(end Time) {
	c.after(Duration(100*time.Millisecond), func() {
		if c.now > end {
			return
		}

		for _, b := range c.backs {
			for _, s := range b.sessions {
				if s != nil && s.up && s.sch.pausedUntil <= c.now && max(s.darkUntil[toEngine], s.darkUntil[fromEngine]) <= c.now {
					s.h.RoundTrip(int64(c.drawDelay(&s.link) + c.drawDelay(&s.link)))
				}
			}
		}
		c.measureRoundTrips(end)
	})
}
