package swarm

// link is one session's connection. Messages of one direction arrive in order.
type link struct {
	session
	p         *peer
	sch       *scheduler
	life      int // of its scheduler
	up        bool
	closed    bool    // on the engine's side
	last      [2]Time // by direction: when the latest message arrives
	darkUntil [2]Time // by direction: nothing arrives until then, and messages sent meanwhile arrive afterwards
	slow      Duration
	slowUntil Time
}

// Directions of a link.
const (
	toEngine = iota
	fromEngine
)

// silenceMost is how long a link may be silent before both ends give it up, as in package control.
const silenceMost Duration = 500e6

// send sends a message over a link. deliver runs when it arrives, if the link still exists. lose is the probability
// of a loss, which counts as fault f.
func (c *Cluster) send(l *link, dir int, f Fault, lose float64, deliver func()) {
	if !l.up {
		return
	}

	if !c.calm && c.chance(lose) {
		c.happens(f, 0, 0)
		return
	}

	// Messages of one link arrive in order.
	arrives := max(l.last[dir], l.darkUntil[dir], c.now.Add(c.drawDelay(l)))
	l.last[dir] = arrives
	c.deliverAt(l, dir, arrives, deliver)

	// A duplicate arrives out of order. No link does that, but a peer with a bug may.
	if !c.calm && c.chance(c.o.Duplicate) {
		c.happens(Doubled, int64(f), 0)
		c.deliverAt(l, dir, arrives.Add(c.within(0, c.o.LateBy)), deliver)
	}
}

// sendReliably sends a message that is lost only with its link, such as one about leadership: no protocol message
// repeats it, so a peer must not depend on a single message that may be lost.
func (c *Cluster) sendReliably(l *link, dir int, deliver func()) {
	if l.up {
		l.last[dir] = max(l.last[dir], l.darkUntil[dir], c.now.Add(c.drawDelay(l)))
		c.deliverAt(l, dir, l.last[dir], deliver)
	}
}

// deliverAt delivers a message. A paused scheduler gets it when it resumes.
func (c *Cluster) deliverAt(l *link, dir int, at Time, deliver func()) {
	c.at(at, func() {
		switch {
		case !l.up:
		case dir == toEngine && l.sch.pausedUntil > c.now:
			c.deliverAt(l, dir, l.sch.pausedUntil, deliver)
		default:
			deliver()
		}
	})
}

// drawDelay draws a message's delay.
func (c *Cluster) drawDelay(l *link) Duration {
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

// blockLink blocks a link for a while, in one direction or both. If the silence exceeds the limit, the peer gives the
// link up and cut is called.
func (c *Cluster) blockLink(l *link, d Duration, both bool, cut func()) {
	dir := c.rng.IntN(2)
	for k := range l.darkUntil {
		if both || k == dir {
			l.darkUntil[k] = max(l.darkUntil[k], c.now.Add(d))
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

func (c *Cluster) addMark(what string, a, b, d int64) { c.trace.note(c.now, what, a, b, d) }
