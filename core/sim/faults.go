package sim

import (
	"time"

	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
)

// faults draws when what breaks.
func (c *Cluster) faults(span Duration) {
	some := func(n int, do func()) {
		for range n {
			c.after(c.within(0, span), do)
		}
	}
	back := func() *back { return c.backs[c.rng.IntN(len(c.backs))] }
	some(c.o.Hangs, func() {
		d := c.within(0, 200e6)
		if c.rng.IntN(3) == 0 {
			d = 10e9 // until the watchdog rings
		}
		back().hang(d)
	})
	some(c.o.Deaths, func() { back().die(c.within(0, 500e6)) })
	some(c.o.Breaks, func() {
		if b := back(); c.rng.IntN(2) == 0 && b.s.up {
			b.s.breakLink(c.within(0, 300e6))
			return
		}
		if f := c.fronts[c.rng.IntN(len(c.fronts))]; f.s.up {
			f.s.breakLink()
		}
	})
	some(c.o.Vanishes, func() {
		if f := c.fronts[c.rng.IntN(len(c.fronts))]; !f.gone {
			f.vanish()
		}
	})
	some(c.o.Slowdowns, func() {
		b := back()
		b.slow = 1 + 9*c.rng.Float64()
		c.note("slow", int64(b.index), int64(b.slow*100), 0)
		c.after(c.within(0, span), func() { b.slow = 1 })
	})
}

// vanish ends a frontend without a word; another one starts.
func (f *front) vanish() {
	c := f.c
	c.note("vanishes", int64(f.index), 0, 0)
	f.gone = true
	s := f.s
	s.up = false
	c.after(c.within(0, 200e6), s.close)
	c.newFront()
}

// ping measures round trips, as sessions do.
func (c *Cluster) ping(end Time) {
	c.after(Duration(100*time.Millisecond), func() {
		if c.now > end {
			return
		}
		for _, b := range c.backs {
			if b.s.up {
				b.s.h.RoundTrip(int64(c.delay() + c.delay()))
			}
		}
		c.ping(end)
	})
}

// heal ends all faults: who hangs starts anew, who is away returns.
func (c *Cluster) heal() {
	c.calm = true
	c.note("faults are over", 0, 0, 0)
	for _, b := range c.backs {
		if b.hung > c.now {
			b.die(0)
		}
		b.revive()
		b.slow = 1
		b.connect()
	}
	for _, f := range c.fronts {
		f.connect()
	}
}

// patience is how long after the faults' end everything has ended: the longest watchdog, and what
// follows when it rings.
func (c *Cluster) patience() Duration {
	most := int64(0)
	for _, b := range c.backs {
		for i := range b.hello.Models {
			t := b.hello.Models[i].Profile
			most = max(most, t[len(t)-1])
		}
	}
	return watchdog(Duration(most)) + 1e9
}

// watchdog is how long after its planned end a batch may be missing until its backend is cut.
func watchdog(exec Duration) Duration {
	return max(2e9, 8*exec) + 100e6 + cutMost
}

// probesMax bounds how many models are asked for at the end.
const probesMax = 8

// probe asks for one request of each of some models, one after the other: all must be served.
func (c *Cluster) probe() {
	f := &front{c: c, index: len(c.fronts), tempo: 1, ids: make([]uint32, len(c.models))}
	c.fronts = append(c.fronts, f)
	f.connect()
	for range min(probesMax, len(c.models)) {
		k := c.rng.IntN(len(c.models))
		if f.ids[k] == 0 || c.check.err != nil {
			c.check.fail("C8: model %d is not in the catalogue", k)
			return
		}
		x := call{deadline: c.now.Add(2*c.models[k].slo + 50e6), model: k, live: true}
		f.calls = append(f.calls, x)
		id := uint64(len(f.calls))
		served := c.report.Good
		f.submit([]wire.Submit{f.message(id)})
		f.expire(len(f.calls)-1, len(f.calls), x.deadline)
		c.run(x.deadline.Add(2 * grace))
		if c.report.Good != served+1 {
			c.check.fail("C8: a request for model %d was not served when all faults were over", k)
			return
		}
		c.report.Good--
	}
}

// reasonOf names an outcome's reason for messages.
func reasonOf(r uint8) string { return sched.Reason(r).String() }
