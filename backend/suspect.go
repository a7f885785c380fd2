package backend

import (
	"context"
	"errors"
	"math"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/rdma"
)

// A frontend whose reads are overdue is suspect: its host may be dark, its link slow, its process stopped. What is
// being read from it is given up, so that it holds no slot of a GPU; its rows fail at once, and the other rows of
// their batches run. It is asked again and again whether it answers, and trusted as soon as it does (decision 0044).
const (
	overdueFactor  = 4                      // times what reads of the frontend take
	overdueRate    = 50_000_000             // bytes a second: a link that brings so many is not slow
	overdueConnect = 100 * time.Millisecond // that a batch waits for a frontend that is being connected
	pingMax        = time.Second            // for an answer; then the connection is made anew
	probeMin       = 10 * time.Millisecond  // between probes, and before the first of a frontend that was suspect lately
	probeMax       = 2 * time.Second
	relapse        = 10 * time.Second // who is suspect again within it is trusted later than the time before
	sayEvery       = 10 * time.Second // log lines about one frontend
	slotTries      = time.Millisecond // how often an order without a slot looks whether its reads have begun
)

var errSuspect = errors.New("frontend is suspect: reads from it are overdue")

// never is later than any time of the backend's clock.
const never = time.Duration(math.MaxInt64)

// overdueAfter is how long the group's reads may take before their frontend is suspect. It grows with the budgets, for a
// batch that has seconds can wait out a host that stumbles, and with the inputs: 8 MiB take a sound network longer
// than an eighth of most budgets, and nothing would ever be learned of it.
func (o *order) overdueAfter(g *group) time.Duration {
	least := max(limits.OverdueAfter(o.useful-o.came), o.soundReadTime(g))

	// A connection takes longer to make than a read: a new frontend is not suspect for it.
	if g.source.conn.Load() == nil {
		return max(least, overdueConnect)
	}
	return max(least, overdueFactor*time.Duration(g.source.usual.Load()))
}

// soundReadTime is what the group's inputs take at overdueRate.
func (o *order) soundReadTime(g *group) time.Duration {
	rows := (g.to - g.from) / max(1, len(o.model.Inputs))
	return time.Duration(rows*o.model.InBytes) * (time.Second / overdueRate)
}

// learnTime notes how long a read took that ended well: the longest lately counts.
func (f *peer) learnTime(took time.Duration) {
	// The longest fades by a 64th with each read, so that one slow read does not count for ever.
	usual := f.usual.Load()
	f.usual.Store(max(int64(took), usual-usual/64))
}

// doubtStalled makes the frontend suspect, and reports so, if the kernel has had no word from its host for longer than the group's reads may
// take: what is asked for now would lie behind what does not arrive, and the kernel doubles its pauses.
func (f *peer) doubtStalled(g *group, stalled time.Duration) bool {
	if stalled == 0 || stalled < g.o.overdueAfter(g) {
		return false
	}
	f.doubtPeer("the network does not deliver: nothing has been acknowledged for " + stalled.Round(time.Millisecond).String())
	return true
}

// doubtPeer makes the frontend suspect and gives up what is being read from it. It does not wait, and may be called
// from any goroutine, also where a read ends.
func (f *peer) doubtPeer(why string) {
	if f.suspect.Swap(true) {
		return
	}
	f.all.doubts.Add(1)
	f.all.suspects.Add(1)

	// A frontend that falls back soon is asked later each time.
	f.mu.Lock()
	if time.Since(f.trusted) < relapse {
		f.pause = min(max(2*f.pause, probeMin), probeMax)
	} else {
		f.pause = 0
	}

	waiting := f.waiting
	f.waiting = nil
	f.doubts++
	if time.Since(f.said) > sayEvery {
		f.said = time.Now()
		f.all.log.Warn("frontend does not deliver inputs: its requests fail until it answers, others go on", "addr", f.addr, "why", why, "times", f.doubts)
		f.doubts = 0
	}

	// A backend that closes starts no goroutine any more.
	probing := f.all.ctx.Err() == nil
	if probing {
		f.all.wait.Add(1)
	}
	f.mu.Unlock()

	for _, g := range waiting {
		g.refuseReads(errSuspect)
	}

	// Reads under way end at once, so that their slots come free.
	if c := f.conn.Load(); c != nil {
		c.GiveUp()
	}
	if probing {
		go f.probePeer()
	}
}

// probePeer asks until the frontend answers, or the scheduler names it no more.
func (f *peer) probePeer() {
	defer f.all.wait.Done()
	defer f.all.suspects.Add(-1)
	since := time.Now()

	f.mu.Lock()
	pause := f.pause
	f.mu.Unlock()

	// Pauses grow, so that a host that stays dark costs little.
	for f.all.sleepFor(pause) && !f.left.Load() {
		if f.askPeer() {
			f.trustPeer(since)
			return
		}
		pause = min(max(2*pause, probeMin), probeMax)
	}
}

// trustPeer ends a suspicion.
func (f *peer) trustPeer(since time.Time) {
	f.mu.Lock()
	f.trusted = time.Now()
	f.mu.Unlock()
	f.suspect.Store(false)
	f.all.log.Debug("frontend answers again", "addr", f.addr, "after", time.Since(since).Round(time.Millisecond))
}

// askPeer connects if need be and asks once. What the frontend still sends for reads that were given up comes
// before its answer; if that takes long, a new connection is the quicker way.
func (f *peer) askPeer() bool {
	ctx, cancel := context.WithTimeout(f.all.ctx, connectMax)
	defer cancel()
	c, err := f.all.node.Connect(ctx, f.addr)
	if err != nil {
		f.notReached(err)
		return false
	}

	ended := make(chan error, 1)
	c.Ping(func(err error) { ended <- err })
	patience := time.NewTimer(pingMax)
	defer patience.Stop()
	select {
	case err = <-ended:
	case <-patience.C:
		// Closing ends the ping with an error, which is all that is waited for then.
		c.Close()
		err = <-ended
	case <-f.all.ctx.Done():
		return false
	}
	if err != nil {
		f.dropLost(err)
		return false
	}

	f.mu.Lock()
	f.conn.Store(c)
	f.mu.Unlock()
	return true
}

// sleepFor waits; it reports false if the backend closes meanwhile.
func (p *peers) sleepFor(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// overdueAt is when the last of the order's reads under way will be overdue; never if none is, or all that are
// have been given up.
func (o *order) overdueAt() time.Duration {
	if !o.planned.Load() {
		return never
	}

	at := time.Duration(-1)
	for _, g := range o.groups {
		if !g.over.Load() && !g.source.suspect.Load() {
			at = max(at, o.posted+o.overdueAfter(g))
		}
	}
	if at < 0 {
		return never
	}
	return at
}

// doubtOverdue makes the frontends suspect whose reads are overdue at now.
func (o *order) doubtOverdue(now time.Duration) {
	if !o.planned.Load() {
		return
	}
	for _, g := range o.groups {
		if !g.over.Load() && now >= o.posted+o.overdueAfter(g) {
			g.source.doubtPeer("reads are overdue")
		}
	}
}

// doubtLate makes all frontends suspect that have not delivered: somebody needs the slot.
func (o *order) doubtLate() {
	if !o.planned.Load() {
		return
	}
	for _, g := range o.groups {
		if !g.over.Load() {
			g.source.doubtPeer("its reads keep slots from others")
		}
	}
}

// noteEnd notes how the group's reads ended, for the next ones from its frontend.
func (g *group) noteEnd(err error) {
	switch now := g.o.gpu.backend.now(); {
	case err == nil:
		g.source.learnTime(now - g.o.posted)
	case errors.Is(err, rdma.ErrGivenUp) && now >= g.o.useful: // else by doubt
		g.source.doubtPeer("a read did not end by the last deadline of its batch")
	}
}
