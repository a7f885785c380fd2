// Package lead elects the scheduler that leads a cluster. One record, changed only by compare-and-swap, holds the
// leader and its epoch. A standby takes the record at once when more than half of the GPUs report that they have lost
// the leader. It also takes a record that is no longer renewed, unless the GPUs report that the leader is well. Peers
// obey only the highest epoch, so an old leader that does not know of its successor cannot give orders. If the store
// cannot be reached, nothing changes: the leader keeps leading.
//
// The package moves no requests and knows no protocol; core/control does.
package lead

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"downbeat.dev/core/control"
)

// Record names the leader.
type Record struct {
	Epoch  uint64 `json:"epoch"`  // increases with every change of leader
	Holder string `json:"holder"` // name of the leader for operators; empty: the last one has resigned
	Beat   uint64 `json:"beat"`   // increases while the holder lives
}

// Revision names one state of the record, for Swap. Empty: there is no record.
type Revision string

// ErrChanged is returned by Swap if the record is no longer the expected one.
var ErrChanged = errors.New("the record was changed by another scheduler")

// Store keeps the record. Its methods may be called from any goroutine and end with their context.
type Store interface {
	// Get returns the record; a zero one with an empty revision if there is none.
	Get(ctx context.Context) (Record, Revision, error)
	// Swap replaces the record of revision old, or fails with ErrChanged.
	Swap(ctx context.Context, old Revision, to Record) (Revision, error)
	Close() error
}

// Scheduler leads or stands by; control.Server implements it.
type Scheduler interface {
	Lead(epoch uint64)
	StandBy(epoch uint64)
	View() control.View
	Changed() <-chan struct{}
}

// Tick is how often a candidate looks at the record.
const Tick = 250 * time.Millisecond

// Periods, in the candidate's own ticks, so that a candidate that was paused does not blame others.
const (
	beatTicks   = 4  // between renewals
	expireTicks = 16 // without a renewal until the holder counts as dead; shorter than the time for which frontends wait for a scheduler
	storeMax    = time.Second
)

// Candidate is one scheduler's part in the election.
type Candidate struct {
	Store     Store
	Scheduler Scheduler
	Name      string // of the scheduler, for operators
	Logger    *slog.Logger

	gpus atomic.Int64 // as last reported by the leader

	// The fields below belong to Run.
	leads    bool
	epoch    uint64 // the epoch led in
	record   Record // as last read
	revision Revision
	known    bool // record has been read
	ticks    int  // since this leader's last renewal, or since the record last changed
	absent   bool // the store could not be reached, and that was logged
}

// HearGPUs sets the number of the leader's GPUs, more than half of which must have lost it before a standby takes
// over. Safe for concurrent use.
func (c *Candidate) HearGPUs(n int) { c.gpus.Store(int64(n)) }

// Run takes part in the election until ctx ends. A leader then resigns, so that no standby waits for its record to
// expire.
func (c *Candidate) Run(ctx context.Context) {
	t := time.NewTicker(Tick)
	defer t.Stop()

	// Look at once: a cluster without a leader should not wait for a tick.
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

// Step acts on the peers' reports and, after a tick, on the record. Run calls it; a simulator calls it directly. Not
// safe for concurrent use.
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

// mayTake reports whether there is no leader any more.
func (c *Candidate) mayTake(v control.View) bool {
	all := max(v.GPUs, int(c.gpus.Load()))

	// The record of a leader that has resigned is decisive, whatever its peers have noticed yet.
	if c.revision != "" && c.record.Holder == "" && v.Epoch <= c.record.Epoch {
		return true
	}

	// Peers of an earlier epoch may not know the present leader, so their losses say nothing about it.
	if v.Epoch >= c.record.Epoch && 2*v.Lost > all {
		return true
	}
	if 2*v.Alive > v.GPUs {
		return false // a leader that has lost only the store keeps leading
	}

	// No peer reports on the leader, so only the record's age is left to judge by.
	return c.revision == "" || c.ticks >= expireTicks
}

// readRecord reads the record.
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

// takeLead makes this scheduler the leader, unless another was faster.
func (c *Candidate) takeLead(ctx context.Context, v control.View) {
	// The record may have changed since the last tick; a scheduler that took it meanwhile is not displaced.
	before := c.record.Epoch
	c.readRecord(ctx)
	if c.record.Epoch != before {
		return // another scheduler leads
	}

	// All peers obey an epoch above both the record's and theirs.
	c.swapRecord(ctx, max(c.record.Epoch, v.Epoch)+1)
}

// swapRecord replaces the record that was read with this scheduler's, and leads.
func (c *Candidate) swapRecord(ctx context.Context, epoch uint64) {
	ctx, cancel := context.WithTimeout(ctx, storeMax)
	defer cancel()

	to := Record{Epoch: epoch, Holder: c.Name}
	revision, err := c.Store.Swap(ctx, c.revision, to)

	// Another candidate was faster. The known record is stale, so nothing is taken before the next look.
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

// renewRecord shows the standbys that this leader lives, or learns that it leads no more.
func (c *Candidate) renewRecord(ctx context.Context) {
	c.ticks = 0
	ctx, cancel := context.WithTimeout(ctx, storeMax)
	defer cancel()

	record, revision, err := c.Store.Get(ctx)
	if c.logFailure(ctx, err) {
		return // a candidate that cannot reach the store takes nothing either
	}

	c.record, c.revision = record, revision
	switch {
	case record.Epoch > c.epoch:
		c.standBy(record.Epoch)
	case record.Epoch < c.epoch || record.Holder != c.Name:
		c.swapRecord(ctx, c.epoch+1) // the store was lost, but the cluster has a leader
	default:
		record.Beat++
		if revision, err = c.Store.Swap(ctx, revision, record); err == nil {
			c.record, c.revision = record, revision
		} else if !errors.Is(err, ErrChanged) { // otherwise the next look decides
			c.logFailure(ctx, err)
		}
	}
}

// resignLead removes this scheduler's name from the record. It leaves a record that another scheduler holds or that cannot
// be reached.
func (c *Candidate) resignLead() {
	ctx, cancel := context.WithTimeout(context.Background(), storeMax)
	defer cancel()

	// Run's context may have ended in the middle of a change, so the store's record can be newer than the one read last.
	record, revision, err := c.Store.Get(ctx)
	if err == nil && record.Holder != c.Name {
		return
	}
	if err == nil {
		record.Holder = ""
		_, err = c.Store.Swap(ctx, revision, record)
	}

	// Peers and standbys also notice the end of the process, perhaps sooner, so a failure here costs only time.
	if err != nil && c.leads && !errors.Is(err, ErrChanged) {
		c.Logger.Warn("the lead could not be resigned; a standby takes it when the record expires", "err", err)
	}
}

func (c *Candidate) standBy(epoch uint64) {
	c.leads, c.known, c.ticks = false, false, 0
	c.Scheduler.StandBy(epoch)
}

// logFailure logs that the store cannot be reached, once per outage.
func (c *Candidate) logFailure(ctx context.Context, err error) bool {
	switch {
	case err == nil && c.absent:
		c.absent = false
		c.Logger.Info("the election's store is back")
	case err != nil && !c.absent && !errors.Is(ctx.Err(), context.Canceled):
		c.absent = true
		c.Logger.Warn("the election's store cannot be reached: the leader continues, and no standby can take over", "err", err)
	}
	return err != nil
}
