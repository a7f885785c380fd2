package lead

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"testing"

	"downbeat.dev/core/control"
)

// memory is a store whose failures a test decides.
type memory struct {
	mu     sync.Mutex
	record Record
	at     int
	gone   bool
}

var errGone = errors.New("the store is gone")

func (m *memory) revision() Revision {
	if m.at == 0 {
		return ""
	}
	return Revision(strconv.Itoa(m.at))
}

func (m *memory) Get(context.Context) (Record, Revision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone {
		return Record{}, "", errGone
	}
	return m.record, m.revision(), nil
}

func (m *memory) Swap(_ context.Context, old Revision, to Record) (Revision, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.gone:
		return "", errGone
	case old != m.revision():
		return "", ErrChanged
	}
	m.record = to
	m.at++
	return m.revision(), nil
}

func (m *memory) Close() error { return nil }

// puppet is a scheduler whose peers report what the test says.
type puppet struct {
	view  control.View
	leads bool
	epoch uint64
}

func (p *puppet) Lead(epoch uint64)        { p.leads, p.epoch = true, epoch }
func (p *puppet) StandBy(epoch uint64)     { p.leads, p.epoch = false, max(p.epoch, epoch) }
func (p *puppet) View() control.View       { return p.view }
func (p *puppet) Changed() <-chan struct{} { return nil }

// cluster is some candidates and their store.
type cluster struct {
	t     *testing.T
	store *memory
	all   []*Candidate
	peers []*puppet
}

func newCluster(t *testing.T, n int) *cluster {
	c := &cluster{t: t, store: new(memory)}
	for i := range n {
		p := new(puppet)
		c.peers = append(c.peers, p)
		c.all = append(c.all, &Candidate{Store: c.store, Scheduler: p, Name: strconv.Itoa(i), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	}
	return c
}

// ticks lets some candidates tick.
func (c *cluster) ticks(n int, which ...int) {
	for range n {
		for _, i := range which {
			c.all[i].Step(c.t.Context(), true)
		}
	}
}

func (c *cluster) want(what string, leader int, epoch uint64) {
	c.t.Helper()
	for i, p := range c.peers {
		if p.leads != (i == leader) || p.leads && p.epoch != epoch {
			c.t.Fatalf("%s: scheduler %d leads: %v, in epoch %d; want %d to lead in epoch %d", what, i, p.leads, p.epoch, leader, epoch)
		}
	}
}

func (c *cluster) see(v control.View, which ...int) {
	for _, i := range which {
		c.peers[i].view = v
	}
}

func TestElection(t *testing.T) {
	c := newCluster(t, 3)
	c.ticks(1, 0, 1, 2)
	c.want("at first", 0, 1)

	// The leader renews its record, and no other takes it.
	c.see(control.View{Epoch: 1, GPUs: 4, Alive: 4}, 0, 1, 2)
	c.ticks(3*expireTicks, 0, 1, 2)
	c.want("while it lives", 0, 1)

	// Half of the GPUs are not enough; more suffice, without waiting for a tick.
	c.see(control.View{Epoch: 1, GPUs: 4, Alive: 2, Lost: 2}, 1, 2)
	c.all[1].Step(t.Context(), false)
	c.want("half of the GPUs have lost it", 0, 1)
	c.see(control.View{Epoch: 1, GPUs: 4, Alive: 1, Lost: 3}, 1, 2)
	c.all[1].Step(t.Context(), false)
	c.all[2].Step(t.Context(), false)
	c.see(control.View{Epoch: 2, GPUs: 4, Alive: 4}, 0, 1, 2)
	c.ticks(1, 0, 1, 2)
	c.want("three of four GPUs have lost it", 1, 2)

	// The store is lost for a while. Nothing changes, and the leader writes its record again.
	c.store.gone = true
	c.ticks(3*expireTicks, 0, 1, 2)
	c.want("the store is gone", 1, 2)
	c.store.gone, c.store.record, c.store.at = false, Record{}, 0
	c.ticks(2*beatTicks, 0, 1, 2)
	c.want("the store is back and empty", 1, 3)
}

// TestPausedLeaderStandsBy shows that a leader that was stopped, and meanwhile replaced, hears of it from the store
// or from its peers, whichever is first.
func TestPausedLeaderStandsBy(t *testing.T) {
	for _, from := range []string{"store", "peers"} {
		t.Run(from, func(t *testing.T) {
			c := newCluster(t, 2)
			c.ticks(1, 0, 1)
			c.see(control.View{Epoch: 1, GPUs: 2, Lost: 2}, 1)
			c.all[1].Step(t.Context(), false)
			if from == "peers" {
				c.store.gone = true
				c.see(control.View{Epoch: 2, GPUs: 1, Alive: 1}, 0)
			}
			c.ticks(beatTicks, 0)
			c.want("after the pause", 1, 2)
		})
	}
}

// TestExpiry: without peers that report, a leader is replaced if its record is not renewed. If peers report that it
// is well, for example when only the leader cannot reach the store, it is not replaced.
func TestExpiry(t *testing.T) {
	c := newCluster(t, 2)
	c.ticks(1, 0, 1)
	c.see(control.View{Epoch: 1, GPUs: 4, Alive: 3}, 1)
	c.ticks(3*expireTicks, 1)
	c.want("the GPUs still have the leader", 0, 1)

	c.see(control.View{Epoch: 1, GPUs: 4, Alive: 2}, 1)
	c.ticks(1, 1)
	if !c.peers[1].leads || c.peers[1].epoch != 2 {
		t.Error("nobody took the record of a leader that is gone")
	}
}

// TestResignedLeadIsTakenAtOnce: the leader ends in order. A standby that has heard of no peer yet, like one that has
// just started, leads at its next check of the record.
func TestResignedLeadIsTakenAtOnce(t *testing.T) {
	c := newCluster(t, 2)
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.all[0].Run(ctx); close(ended) }()
	for leads := false; !leads; {
		r, _, _ := c.store.Get(ctx)
		leads = r.Epoch == 1
	}
	c.ticks(1, 1)
	end()
	<-ended

	c.ticks(1, 1)
	if p := c.peers[1]; !p.leads || p.epoch != 2 {
		t.Errorf("the standby leads: %v, in epoch %d; want it to lead in epoch 2", p.leads, p.epoch)
	}
	if r, _, _ := c.store.Get(t.Context()); r.Holder != "1" {
		t.Errorf("the record's holder is %q, want the standby", r.Holder)
	}
}

// TestALeadIsResignedInTheMiddleOfAChange: the scheduler is told to end while the store performs its claim or renewal
// of the record, and never hears of the result. It still resigns.
func TestALeadIsResignedInTheMiddleOfAChange(t *testing.T) {
	for _, what := range []string{"taken", "renewed"} {
		t.Run(what, func(t *testing.T) {
			c := newCluster(t, 1)
			ctx, end := context.WithCancel(t.Context())
			if what == "renewed" {
				c.ticks(beatTicks, 0)
			}
			c.all[0].Store = unheard{c.store, end}
			c.all[0].Run(ctx)
			if r, _, _ := c.store.Get(t.Context()); r.Epoch != 1 || r.Holder != "" {
				t.Errorf("the record is %+v, want one of epoch 1 that nobody holds", r)
			}
		})
	}
}

// unheard is a store that performs a change whose caller has ended in the meantime.
type unheard struct {
	*memory
	end func()
}

func (u unheard) Swap(ctx context.Context, old Revision, to Record) (Revision, error) {
	revision, err := u.memory.Swap(ctx, old, to)
	if ctx.Err() == nil && to.Holder != "" {
		u.end()
		return "", context.Canceled
	}
	return revision, err
}

// TestCutOffStandbyTakesNothing: a standby with only a few backends sees all of them lose the leader, and knows that
// they are not the majority.
func TestCutOffStandbyTakesNothing(t *testing.T) {
	c := newCluster(t, 2)
	c.ticks(1, 0, 1)
	c.all[1].HearGPUs(10)
	c.see(control.View{Epoch: 1, GPUs: 2, Lost: 2}, 1)
	c.all[1].Step(t.Context(), false)
	c.want("2 of 10 GPUs", 0, 1)
}
