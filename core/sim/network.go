package sim

// link is one session's connection. Messages of one direction arrive in order.
type link struct {
	up       bool
	to, from Time // when the latest message arrives at the engine, at the peer
}

// Directions of a link.
const (
	toEngine = iota
	fromEngine
)

// send carries a message over a link: deliver runs when it arrives, if the link is still there.
func (c *Cluster) send(l *link, dir int, what string, lose float64, deliver func()) {
	if !l.up {
		return
	}
	if !c.calm && c.chance(lose) {
		c.report.Lost++
		c.note("lost "+what, 0, 0, 0)
		return
	}
	last := &l.to
	if dir == fromEngine {
		last = &l.from
	}
	*last = max(*last, c.now.Add(c.delay()))
	arrive := func() {
		if l.up {
			deliver()
		}
	}
	c.at(*last, arrive)
	if !c.calm && c.chance(c.o.Duplicate) {
		c.report.Doubled++
		c.note("doubled "+what, 0, 0, 0)
		c.at(last.Add(c.within(0, c.o.LateBy)), arrive)
	}
}

// delay draws how long a message takes.
func (c *Cluster) delay() Duration {
	if c.calm {
		return 0
	}
	d := c.within(c.o.Delay, c.o.Delay+c.o.Vary)
	if c.chance(c.o.Late) {
		d += c.within(0, c.o.LateBy)
	}
	return d
}

func (c *Cluster) note(what string, a, b, d int64) { c.trace.note(c.now, what, a, b, d) }
