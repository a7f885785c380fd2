package backend

import (
	"context"
	"errors"
	"math"
	"time"

	"downbeat.dev/core/limits"
	"downbeat.dev/rdma"
)

// A frontend whose reads are overdue becomes suspect: its host may be unreachable, its link slow, its process
// stopped. Reads from it are given up, so that they hold no slot of a GPU; its rows fail at once, and the other rows
// of their batches run. The backend probes it repeatedly, and trusts it as soon as it answers (decision 0044).
const (
	overdueFactor  = 4                      // multiple of the usual time of the frontend's reads
	overdueRate    = 50_000_000             // bytes a second: a link with this rate is not slow
	overdueConnect = 100 * time.Millisecond // for a batch that waits for a frontend's connection
	pingMax        = time.Second            // for an answer; after that it reconnects
	probeMin       = 10 * time.Millisecond  // between probes, and before the first one if the frontend was not suspect recently
	probeMax       = 2 * time.Second
	relapse        = 10 * time.Second // a frontend that is suspect again within this time is trusted later than before
	sayEvery       = 10 * time.Second // between log lines about one frontend
	slotTries      = time.Millisecond // interval at which an order without a slot checks whether its reads have begun
)

var errSuspect = errors.New("frontend is suspect: reads from it are overdue")

// never is later than any time of the backend's clock.
const never = time.Duration(math.MaxInt64)

// overdueAfter is how long the group's reads may take before their frontend is suspect. It grows with the budgets,
// because a batch with seconds left can wait for a host that stalls briefly. It also grows with the inputs: 8 MiB
// take a sound network longer than an eighth of most budgets, and their usual time could never be learned.
func (o *order) overdueAfter(g *group) time.Duration {
	least := max(limits.OverdueAfter(o.useful-o.came), o.soundReadTime(g))

	// Connecting takes longer than a read, and must not make a new frontend suspect.
	if g.source.conn.Load() == nil {
		return max(least, overdueConnect)
	}
	return max(least, overdueFactor*time.Duration(g.source.usual.Load()))
}

// soundReadTime is the time of the group's reads at overdueRate.
func (o *order) soundReadTime(g *group) time.Duration {
	rows := (g.to - g.from) / max(1, len(o.model.Inputs))
	return time.Duration(rows*o.model.InBytes) * (time.Second / overdueRate)
}

// learnTime records the duration of a successful read; usual is a fading maximum.
func (f *peer) learnTime(took time.Duration) {
	// The maximum fades by a 64th per read, so that one slow read does not count for ever.
	usual := f.usual.Load()
	f.usual.Store(max(int64(took), usual-usual/64))
}

// doubtStalled makes the frontend suspect, and returns true, if its host has acknowledged nothing for longer than the
// group's reads may take. A read now would wait behind lost data, and the kernel doubles its retransmission pauses.
func (f *peer) doubtStalled(g *group, stalled time.Duration) bool {
	if stalled == 0 || stalled < g.o.overdueAfter(g) {
		return false
	}
	f.doubtPeer("the network does not deliver: nothing has been acknowledged for " + stalled.Round(time.Millisecond).String())
	return true
}

// doubtPeer makes the frontend suspect and gives up the reads from it. It does not wait, and may be called from any
// goroutine, even where a read ends.
func (f *peer) doubtPeer(why string) {
	if f.suspect.Swap(true) {
		return
	}
	f.all.doubts.Add(1)
	f.all.suspects.Add(1)

	// If a frontend soon becomes suspect again, each first probe comes later.
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

	// A closing backend starts no goroutines.
	probing := f.all.ctx.Err() == nil
	if probing {
		f.all.wait.Add(1)
	}
	f.mu.Unlock()

	for _, g := range waiting {
		g.refuseReads(errSuspect)
	}

	// Reads in progress end at once, so that their slots become free.
	if c := f.conn.Load(); c != nil {
		c.GiveUp()
	}
	if probing {
		go f.probePeer()
	}
}

// probePeer probes until the frontend answers, or the scheduler no longer announces it.
func (f *peer) probePeer() {
	defer f.all.wait.Done()
	defer f.all.suspects.Add(-1)
	since := time.Now()

	f.mu.Lock()
	pause := f.pause
	f.mu.Unlock()

	// Pauses grow, so that an unreachable host costs little.
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

// askPeer connects if necessary and sends one ping. Data for abandoned reads comes before the answer; if that takes
// long, a new connection is quicker.
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
		// Closing ends the ping with an error; wait only for that.
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

// sleepFor waits; it returns false if the backend closes meanwhile.
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

// overdueAt returns when the last of the order's reads in progress becomes overdue; never if there are none, or all
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

// doubtOverdue makes frontends with overdue reads suspect.
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

// doubtLate makes all frontends that have not delivered suspect, because the slot is needed.
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

// noteEnd records how the group's reads ended, for later reads from its frontend.
func (g *group) noteEnd(err error) {
	switch now := g.o.gpu.backend.now(); {
	case err == nil:
		g.source.learnTime(now - g.o.posted)
	case errors.Is(err, rdma.ErrGivenUp) && now >= g.o.useful: // otherwise because the frontend is suspect
		g.source.doubtPeer("a read did not end by the last deadline of its batch")
	}
}
