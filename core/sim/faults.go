package sim

import (
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/core/wire"
)

// faults draws the times and kinds of faults.
func (c *Cluster) faults(span Duration) {
	some := func(n int, do func()) {
		for range n {
			c.after(c.within(0, span), do)
		}
	}
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
		f.dark = c.now.Add(c.within(0, span))
	})
	some(c.o.Darks, func() { c.blockSomeLink(c.within(0, 800e6)) })
	some(c.o.SlowLinks, func() { c.slowLink(span) })

	some(c.o.LeaderDeaths, func() { c.someScheduler().die(c.within(0, 2e9)) })
	some(c.o.LeaderPauses, func() { c.someScheduler().pause(c.within(0, 2e9)) })

	some(c.o.StoreCuts, func() {
		s := c.someScheduler()
		c.happens(StoreCut, int64(s.index), 0)
		s.storeCut = c.now.Add(c.within(0, 8e9))
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

func (c *Cluster) hangSome() {
	b := c.someBack()
	d, f := c.within(0, 200e6), Hang
	if c.rng.IntN(3) == 0 {
		d, f = 30e9, LongHang // until the watchdog ends it
	}
	if !b.dead && b.hung <= c.now {
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

// pause stops a scheduler's process for a while. Peers that hear nothing from it for too long give it up.
func (s *scheduler) pause(d Duration) {
	c := s.c
	if s.dead || s.paused > c.now {
		return
	}

	c.happens(LeaderPauses, int64(s.index), int64(d))
	s.paused = c.now.Add(d)
	s.resumed = s.paused
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
	notice := max(0, s.paused.Sub(c.now))
	for _, f := range c.fronts {
		if x := f.sessions[s.index]; x != nil && x.up && which() {
			f.barred[s.index] = c.now.Add(wait)
			x.breakLink(notice+c.within(0, 50e6), c.within(0, 50e6))
		}
	}

	for _, b := range c.backs {
		if x := b.sessions[s.index]; x != nil && x.up && which() {
			b.barred[s.index] = c.now.Add(wait)
			x.breakLink(notice+c.within(0, 50e6), c.within(0, 50e6))
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

// ping measures round trips, as sessions do.
func (c *Cluster) ping(end Time) {
	c.after(Duration(100*time.Millisecond), func() {
		if c.now > end {
			return
		}

		for _, b := range c.backs {
			for _, s := range b.sessions {
				if s != nil && s.up && s.sch.paused <= c.now && max(s.dark[toEngine], s.dark[fromEngine]) <= c.now {
					s.h.RoundTrip(int64(c.delay(&s.link) + c.delay(&s.link)))
				}
			}
		}
		c.ping(end)
	})
}

// endFaults ends all faults: hanging backends restart, absent peers return.
func (c *Cluster) endFaults() {
	c.calm = true
	c.note("faults are over", 0, 0, 0)
	for _, s := range c.schedulers {
		s.paused, s.resumed, s.storeCut = min(s.paused, c.now), min(s.resumed, c.now), 0
		s.revive()
	}

	// A hang may last longer than the recovery.
	for _, b := range c.backs {
		if b.hung > c.now {
			b.die(0)
		}

		b.revive()
		b.slow = 1
		clear(b.broken)
		clear(b.barred)
		b.connectAll()
	}

	for _, f := range c.fronts {
		f.dark = 0
		clear(f.barred)
		f.connectAll()
	}
}

// patience returns the time after the faults' end by which everything has ended: the longest watchdog and its
// consequences, plus an election if there are standbys.
func (c *Cluster) patience() Duration {
	most := time.Duration(0)
	for _, b := range c.backs {
		for i := range b.hello.Models {
			t := b.hello.Models[i].Profile
			most = max(most, t[len(t)-1])
		}
	}
	d := watchdog(Duration(most)) + 1e9
	if len(c.schedulers) > 1 {
		d += electionMost
	}
	return d
}

// electionMost is the longest election: a lease expires, and the last standby notices.
const electionMost Duration = 8e9

// watchdog returns how long after its planned end a batch may be missing before its backend is cut.
func watchdog(exec Duration) Duration {
	return Duration(limits.Engine(time.Duration(exec))) + 100e6 + cutMost
}

// probesMax bounds the number of models that are probed at the end.
const probesMax = 8

// probe sends one request to each of some models, one after the other. Each must be served.
func (c *Cluster) probe() {
	if c.check.err != nil {
		return
	}

	// Use a new frontend, which has no announcements yet, to check the catalogue as well.
	f := c.newFront()
	c.run(c.now.Add(4 * retryEvery))

	for range min(probesMax, len(c.models)) {
		k := c.rng.IntN(len(c.models))
		s := f.session()
		if c.check.err != nil || s == nil || s.ids[k] == 0 {
			c.check.fail("C8: model %d is not in the catalogue of a leader (%v)", k, s != nil)
			return
		}

		tries := 1
		if slow := c.slowGPUs(); slow > 0 {
			tries = learnedMost + trialsMost*slow
		}
		for ; tries > 0 && !f.ask(s, k); tries-- {
		}
		if tries == 0 {
			c.check.fail("C8: a request for model %d was not served when all faults were over", k)
			return
		}
	}
}

// learnedMost is the number of batches after which deadlines allow for a GPU that is slower than planned. The
// percentile of overruns is computed twice more, after one that was computed before.
const learnedMost = 3 * limits.OverrunTurn

// trialsMost is the number of further batches that a GPU may run as trials, whose overruns are not learned from. Each
// hold is twice as long as the previous one, from 100 ms to 10 s, so trials are rare by then.
const trialsMost = 8

// slowGPUs returns the number of GPUs whose batches take longer than planned.
func (c *Cluster) slowGPUs() (n int) {
	for _, b := range c.backs {
		if b.isSlow() {
			n += len(b.hello.GPUs)
		}
	}
	return n
}

// ask submits a probe for a model and reports whether it was served.
func (f *front) ask(s *session, k int) bool {
	c := f.c
	x := call{deadline: c.now.Add(2*c.models[k].slo + 50e6), model: k, live: true}
	f.calls = append(f.calls, x)
	id := uint64(len(f.calls))
	served, good := c.served(), c.report.Good
	f.submit(s, []wire.Submit{f.message(s, id)})
	f.expire(len(f.calls)-1, len(f.calls), x.deadline)
	c.run(x.deadline.Add(2 * grace))

	// Probes are no part of the measured load.
	answered := c.served() == served+1
	c.report.Good = good
	return answered
}

// served counts the outputs that are good enough for a probe. GPUs of one kind are planned as at most 15 % slower
// than the median (docs/decisions/0238): batches of a slower GPU end late until the engine has learned their overrun.
func (c *Cluster) served() int {
	if c.o.loading() && c.o.Unlike > oneKind {
		return c.report.Good + c.report.Late
	}
	return c.report.Good
}
