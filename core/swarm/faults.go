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
		if f := c.someFront(); !f.dead {
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

// someLink returns a backend's or a frontend's open link with a scheduler; nil: the one that was picked has none.
func (c *Cluster) someLink(scheduler int) *link {
	// If the backend has no link, try a frontend.
	if l := c.someBack().links[scheduler]; c.rng.IntN(2) == 0 && l != nil && l.up {
		return l
	}
	if l := c.someFront().links[scheduler]; l != nil && l.up {
		return l
	}
	return nil
}

// breakSome breaks the link of a backend or a frontend.
func (c *Cluster) breakSome() {
	k := c.rng.IntN(len(c.schedulers))
	l := c.someLink(k)
	if l == nil {
		return
	}

	f, noticed := FrontendLinkBreaks, Duration(200e6)
	if _, isBack := l.session.(*backSession); isBack {
		f, noticed = BackendLinkBreaks, 300e6
	}

	c.happens(f, int64(l.p.index), int64(k))
	l.breakLink(c.within(0, 200e6), c.within(0, noticed))
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
	if l := c.someLink(k); l != nil {
		c.blockLink(l, d, both, func() { l.breakLink(c.within(0, 50e6), c.within(0, 50e6)) })
	}
}

// slowLink slows the links of one peer for a while.
func (c *Cluster) slowLink(span Duration) {
	extra, until := c.within(0, 20e6), c.now.Add(c.within(0, span))
	c.happens(SlowLink, int64(extra), int64(until))

	// Slow all links of one peer: the peer's network is slow, not one connection.
	var links []*link
	if c.rng.IntN(2) == 0 {
		links = c.someBack().links
	} else {
		links = c.someFront().links
	}

	for _, l := range links {
		if l != nil {
			l.slow, l.slowUntil = extra, until
		}
	}
}

// crash ends a frontend without notice, and starts another one.
func (f *front) crash() {
	c := f.c
	c.happens(FrontendVanishes, int64(f.index), 0)

	f.dead = true
	for _, l := range f.links {
		if l != nil {
			l.dropLink()
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
			for _, s := range b.openSessions() {
				if s.sch.pausedUntil <= c.now && max(s.darkUntil[toEngine], s.darkUntil[fromEngine]) <= c.now {
					s.h.RoundTrip(int64(c.drawDelay(&s.link) + c.drawDelay(&s.link)))
				}
			}
		}
		c.measureRoundTrips(end)
	})
}
