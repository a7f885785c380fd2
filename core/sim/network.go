package sim

// link is one session's connection. Messages of one direction arrive in order.
type link struct {
	sch       *scheduler
	life      int // of the scheduler that it is with
	up        bool
	last      [2]Time // by direction: when the latest message arrives
	dark      [2]Time // by direction: until when nothing arrives; what is sent meanwhile comes then
	slow      Duration
	slowUntil Time
}

// orphaned says whether the scheduler has died that the session was with: nothing can be told to its engine.
func (l *link) orphaned() bool { return l.sch.dead || l.sch.life != l.life }

// closesLater has a session end when its scheduler goes on: a process that is paused does not notice that a link is gone.
func (l *link) closesLater(c *Cluster, end func()) bool {
	if l.orphaned() || l.sch.paused <= c.now {
		return false
	}
	c.at(l.sch.paused, end)
	return true
}

// Directions of a link.
const (
	toEngine = iota
	fromEngine
)

// silenceMost is how long a link may be silent before both ends give it up, as package control does.
const silenceMost Duration = 500e6

// send carries a message over a link: deliver runs when it arrives, if the link is still there. f says what its loss
// is called.
func (c *Cluster) send(l *link, dir int, f Fault, lose float64, deliver func()) {
	if !l.up {
		return
	}

	if !c.calm && c.chance(lose) {
		c.happens(f, 0, 0)
		return
	}

	// Messages of one link arrive in order.
	arrives := max(l.last[dir], l.dark[dir], c.now.Add(c.delay(l)))
	l.last[dir] = arrives
	c.arrive(l, dir, arrives, deliver)

	// A copy comes out of order: no link does that, but a peer with a bug may.
	if !c.calm && c.chance(c.o.Duplicate) {
		c.happens(Doubled, int64(f), 0)
		c.arrive(l, dir, arrives.Add(c.within(0, c.o.LateBy)), deliver)
	}
}

// tell carries a message that says who leads or who follows. Such messages are not lost on a link that lives: what a
// peer knows of leaders must not hang on one message, and no message of the protocol repeats it.
func (c *Cluster) tell(l *link, dir int, deliver func()) {
	if l.up {
		l.last[dir] = max(l.last[dir], l.dark[dir], c.now.Add(c.delay(l)))
		c.arrive(l, dir, l.last[dir], deliver)
	}
}

// arrive delivers a message, to a scheduler that is paused once it goes on.
func (c *Cluster) arrive(l *link, dir int, at Time, deliver func()) {
	c.at(at, func() {
		switch {
		case !l.up:
		case dir == toEngine && l.sch.paused > c.now:
			c.arrive(l, dir, l.sch.paused, deliver)
		default:
			deliver()
		}
	})
}

// delay draws how long a message takes.
func (c *Cluster) delay(l *link) Duration {
	if c.calm {
		return 0
	}

	d := c.within(c.o.Delay, c.o.Delay+c.o.Vary)
	if c.chance(c.o.Late) {
		c.report.Faults[Delayed]++
		d += c.within(0, c.o.LateBy)
	}
	if l.slowUntil > c.now {
		d += c.within(0, l.slow)
	}
	return d
}

// darken keeps everything from arriving over a link for a while, in one direction or both. Who hears nothing for too
// long gives the link up: cut is called then.
func (c *Cluster) darken(l *link, d Duration, both bool, cut func()) {
	dir := c.rng.IntN(2)
	for k := range l.dark {
		if both || k == dir {
			l.dark[k] = max(l.dark[k], c.now.Add(d))
		}
	}

	if d <= silenceMost {
		c.happens(DarkLink, int64(d), int64(dir))
		return
	}
	c.happens(SilentLink, int64(d), int64(dir))
	c.after(silenceMost, func() {
		if l.up {
			cut()
		}
	})
}

func (c *Cluster) note(what string, a, b, d int64) { c.trace.note(c.now, what, a, b, d) }
