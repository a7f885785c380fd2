// Package lead elects the scheduler that leads a cluster: one record, changed by compare-and-swap only, says
// who leads and in which epoch. A scheduler that stands by takes the record when more than half of the GPUs
// tell that they have lost the leader, at once, or when the record is no longer renewed and they do not tell
// that the leader is well. Peers obey the highest epoch alone, so an old leader that does not know yet orders
// nothing, and a store that cannot be reached changes nothing: who leads goes on.
//
// It moves no requests and knows no protocol; control does.
package lead

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"downbeat.dev/core/control"
)

// Record says who leads.
type Record struct {
	Epoch  uint64 `json:"epoch"`  // grows by every change of leader
	Holder string `json:"holder"` // whom a person would look for; empty: the last one has resigned
	Beat   uint64 `json:"beat"`   // grows while the holder lives
}

// Revision names one state of the record, for Swap. Empty: there is none.
type Revision string

// ErrChanged is Swap's: the record is not what it was.
var ErrChanged = errors.New("the record was changed by another scheduler")

// Store keeps the record. Its methods may be called from any goroutine and end with their context.
type Store interface {
	// Get returns the record; a zero one with an empty revision when there is none.
	Get(ctx context.Context) (Record, Revision, error)
	// Swap replaces the record of a revision, or fails with ErrChanged.
	Swap(ctx context.Context, old Revision, to Record) (Revision, error)
	Close() error
}

// Scheduler is what leads or stands by: a control.Server.
type Scheduler interface {
	Lead(epoch uint64)
	StandBy(epoch uint64)
	View() control.View
	Changed() <-chan struct{}
}

// Tick is how often a candidate looks at the record.
const Tick = 250 * time.Millisecond

// Periods, in ticks of the candidate's own, so that one that was paused blames nobody.
const (
	beatTicks   = 4  // between two renewals
	expireTicks = 16 // without a renewal, after which the holder is taken for dead: before frontends end what waits for a scheduler
	storeMax    = time.Second
)

// Candidate is one scheduler's part in the election.
type Candidate struct {
	Store     Store
	Scheduler Scheduler
	Name      string // of the scheduler, for people
	Logger    *slog.Logger

	gpus atomic.Int64 // that the leader has told of

	// Run's.
	leads    bool
	epoch    uint64 // led in
	record   Record // as last read
	revision Revision
	known    bool // record was read
	ticks    int  // since the beat, or since the record last changed
	absent   bool // the store could not be reached, and it was said
}

// HearGPUs tells how many GPUs the leader has: half of them must have lost it. Safe for concurrent use.
func (c *Candidate) HearGPUs(n int) { c.gpus.Store(int64(n)) }

// Run takes part until ctx ends. A leader resigns then, so that no standby waits for its record to expire.
func (c *Candidate) Run(ctx context.Context) {
	t := time.NewTicker(Tick)
	defer t.Stop()

	// A candidate looks at once: a cluster that has no leader yet should not wait for a tick.
	c.Step(ctx, true)
	for {
		select {
		case <-ctx.Done():
			c.resignLead()
			return
		case <-t.C:
			c.Step(ctx, true)
		case <-c.Scheduler.Changed():
			c.Step(ctx, false)
		}
	}
}

// Step looks at what the peers tell and, when a tick has passed, at the record, and acts on it. Run calls it; a
// simulator does in its stead. Not safe for concurrent use.
func (c *Candidate) Step(ctx context.Context, ticked bool) {
	if ticked {
		c.ticks++
	}

	view := c.Scheduler.View()
	if c.leads {
		if view.Epoch > c.epoch {
			c.standBy(view.Epoch) // the peers have heard of a later leader
		} else if ticked && c.ticks >= beatTicks {
			c.renewRecord(ctx)
		}
		return
	}

	if ticked {
		c.readRecord(ctx)
	}
	if c.known && c.mayTake(view) {
		c.takeLead(ctx, view)
	}
}

// mayTake tells whether there is no leader any more.
func (c *Candidate) mayTake(v control.View) bool {
	all := max(v.GPUs, int(c.gpus.Load()))

	// A leader that has resigned says so itself, whatever its peers see of it yet.
	if c.revision != "" && c.record.Holder == "" && v.Epoch <= c.record.Epoch {
		return true
	}

	// Peers of an earlier epoch may not have heard of the present leader, so that what they have lost says
	// nothing of it.
	if v.Epoch >= c.record.Epoch && 2*v.Lost > all {
		return true
	}
	if 2*v.Alive > v.GPUs {
		return false // a leader that only the store has lost goes on
	}

	// Nobody tells of the leader, neither good nor bad: then only the record's age is left to judge by.
	return c.revision == "" || c.ticks >= expireTicks
}

// readRecord renews what is known of the record.
func (c *Candidate) readRecord(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeMax)
	defer cancel()

	record, revision, err := c.Store.Get(ctx)
	if c.logFailure(ctx, err) {
		return
	}

	if !c.known || revision != c.revision {
		c.ticks = 0
		if record.Epoch > c.record.Epoch {
			c.Scheduler.StandBy(record.Epoch)
		}
	}

	c.record, c.revision, c.known = record, revision, true
}

// takeLead makes this scheduler the leader, unless another one was faster.
func (c *Candidate) takeLead(ctx context.Context, v control.View) {
	// The record may have changed since the last tick; whoever took it meanwhile is not displaced.
	before := c.record.Epoch
	c.readRecord(ctx)
	if c.record.Epoch != before {
		return // somebody leads anew
	}

	// An epoch above both the record's and the peers' is obeyed by all of them.
	c.swapRecord(ctx, max(c.record.Epoch, v.Epoch)+1)
}

// swapRecord writes this scheduler's record in place of the one that was read, and leads.
func (c *Candidate) swapRecord(ctx context.Context, epoch uint64) {
	ctx, cancel := context.WithTimeout(ctx, storeMax)
	defer cancel()

	to := Record{Epoch: epoch, Holder: c.Name}
	revision, err := c.Store.Swap(ctx, c.revision, to)

	// Another candidate was faster. What is known is stale, and nothing is taken before the next look.
	if errors.Is(err, ErrChanged) {
		c.known = false
		return
	}
	if c.logFailure(ctx, err) {
		return
	}

	c.record, c.revision, c.known = to, revision, true
	c.leads, c.epoch, c.ticks = true, epoch, 0
	c.Scheduler.Lead(epoch)
}

// renewRecord tells the standbys that this leader lives, or hears that it leads no more.
func (c *Candidate) renewRecord(ctx context.Context) {
	c.ticks = 0
	ctx, cancel := context.WithTimeout(ctx, storeMax)
	defer cancel()

	record, revision, err := c.Store.Get(ctx)
	if c.logFailure(ctx, err) {
		return // whoever cannot reach the store either takes nothing
	}

	c.record, c.revision = record, revision
	switch {
	case record.Epoch > c.epoch:
		c.standBy(record.Epoch)
	case record.Epoch < c.epoch || record.Holder != c.Name:
		c.swapRecord(ctx, c.epoch+1) // the store was lost, and the cluster has a leader
	default:
		record.Beat++
		if revision, err = c.Store.Swap(ctx, revision, record); err == nil {
			c.record, c.revision = record, revision
		} else if !errors.Is(err, ErrChanged) { // else the next look tells more
			c.logFailure(ctx, err)
		}
	}
}

// resignLead takes this scheduler's name out of the record. A record that is not its own, or cannot be reached, stays.
func (c *Candidate) resignLead() {
	ctx, cancel := context.WithTimeout(context.Background(), storeMax)
	defer cancel()

	// The end may have come while the record was renewed or taken: what the store has since is not what was read last.
	record, revision, err := c.Store.Get(ctx)
	if err == nil && record.Holder != c.Name {
		return
	}
	if err == nil {
		record.Holder = ""
		_, err = c.Store.Swap(ctx, revision, record)
	}

	// Peers and standbys lose a process that ends as well, which may be faster: what fails here costs time, no more.
	if err != nil && c.leads && !errors.Is(err, ErrChanged) {
		c.Logger.Warn("the lead could not be resigned; a standby takes it when the record expires", "err", err)
	}
}

func (c *Candidate) standBy(epoch uint64) {
	c.leads, c.known, c.ticks = false, false, 0
	c.Scheduler.StandBy(epoch)
}

// logFailure logs that the store cannot be reached, once until it can.
func (c *Candidate) logFailure(ctx context.Context, err error) bool {
	switch {
	case err == nil && c.absent:
		c.absent = false
		c.Logger.Info("the election's store is back")
	case err != nil && !c.absent && !errors.Is(ctx.Err(), context.Canceled):
		c.absent = true
		c.Logger.Warn("the election's store cannot be reached; who leads goes on, and nobody can take over", "err", err)
	}
	return err != nil
}
