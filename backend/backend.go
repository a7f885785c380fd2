package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/control"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/sched"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

const (
	drainPause = 30 * time.Second      // what the scheduler is told while draining
	drainQuiet = 20 * time.Millisecond // for batches that are on their way
)

// Config says what a backend serves with what. Everything in it stays the caller's, but executors
// are closed by Close.
type Config struct {
	Name       string // shown by the scheduler
	SubCluster string
	Token      string // of the scheduler
	Models     []*device.Model
	GPUs       []GPU
	Node       *rdma.Node // the data plane
	// Measure returns ℓ(b) of a loaded model, or checks the one that it has. May be nil.
	Measure func(e device.Executor, m *device.Model, s *device.Slot) (*profile.Profile, error)
	Logger  *slog.Logger
}

// GPU is one executor of a backend.
type GPU struct {
	Name     string // shown by the scheduler
	Executor device.Executor
	Core     int // pin the executor's thread to this core; -1: do not pin
}

// Backend fetches, executes and replies. It implements control.BackendEvents.
type Backend struct {
	config   Config
	log      *slog.Logger
	node     *rdma.Node
	models   []*device.Model
	gpus     []*gpu
	peers    peers
	epoch    time.Time
	session  atomic.Uint64 // counts links lost: what an earlier one sent is not started any more
	live     atomic.Int64  // orders that are not recycled
	draining atomic.Bool
	up       atomic.Bool   // the scheduler is connected
	linked   chan struct{} // closed once link is set
	link     control.BackendLink
	stop     chan struct{} // ends the watchdog
	cancel   context.CancelFunc
	wait     sync.WaitGroup
	closing  sync.Once
	refused  []wire.ItemFailure // the link's goroutine's
}

// New loads every model on every GPU and starts their goroutines. A model that cannot be loaded or
// has no profile is left out with a line in the log. Without any model or GPU there is an error, and
// nothing is left running.
func New(c Config) (*Backend, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	ctx, cancel := context.WithCancel(context.Background())
	b := &Backend{config: c, log: c.Logger, node: c.Node, epoch: time.Now(),
		linked: make(chan struct{}), stop: make(chan struct{}), cancel: cancel}
	b.peers = peers{node: c.Node, log: c.Logger, byID: map[uint32]*peer{}, ctx: ctx}
	if err := b.load(); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	for _, g := range b.gpus {
		g.start()
	}
	b.wait.Add(1)
	go b.watchdog()
	return b, nil
}

// load makes the GPUs and loads every model on each of them. A model that fails is left out.
func (b *Backend) load() error {
	size := device.SlotBytes(b.config.Models)
	for i, o := range b.config.GPUs {
		g := newGPU(b, i, o)
		b.gpus = append(b.gpus, g)
		if err := g.allocate(size); err != nil {
			return err
		}
	}
	var failed []error
	for _, m := range b.config.Models {
		switch err := b.loadModel(m); {
		case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded): // told to stop while measuring
			return err
		case err != nil:
			b.log.Error("model left out", "model", m.Name, "version", m.Version, "err", err)
			failed = append(failed, err)
			continue
		}
		b.models = append(b.models, m)
	}
	for _, g := range b.gpus {
		if n := g.unpinned(); n > 0 {
			b.log.Warn("memory that batches are copied from is not pinned: copies are slower and do not overlap; raise the limit on locked memory (ulimit -l)",
				"gpu", g.name, "slots", n, "of", slotsEach)
		}
	}
	if len(b.gpus) == 0 || len(b.models) == 0 {
		return errors.Join(fmt.Errorf("backend has %d GPUs and %d models that it can serve; it needs one of each at least", len(b.gpus), len(b.models)), errors.Join(failed...))
	}
	return nil
}

// loadModel loads m on every GPU, and measures it on the first if it has no profile.
func (b *Backend) loadModel(m *device.Model) error {
	for _, g := range b.gpus {
		if err := g.executor.Load(m, g.slots); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		g.noteAside(m)
		if g == b.gpus[0] && b.config.Measure != nil {
			p, err := b.config.Measure(g.executor, m, g.slots[0])
			if err != nil {
				return fmt.Errorf("%s: %w", g.name, err)
			}
			m.Profile = p
		}
	}
	if m.Profile == nil || m.Profile.Max() < m.BatchMax {
		return fmt.Errorf("model %s version %s has no profile for batches up to %d", m.Name, m.Version, m.BatchMax)
	}
	if slo, one := m.Source.SLO, m.Profile.Exec(1); slo > 0 && slo < time.Duration(one) { // the scheduler would refuse all
		return fmt.Errorf("model %s version %s: SLO %v is shorter than ℓ(1) = %v here", m.Name, m.Version, slo, one)
	}
	return nil
}

// now is the backend's clock.
func (b *Backend) now() time.Duration { return time.Since(b.epoch) }

// Hello returns what the scheduler is told on connecting.
func (b *Backend) Hello() wire.BackendHello {
	h := wire.BackendHello{Version: wire.Version, Name: b.config.Name, Token: b.config.Token, SubCluster: b.config.SubCluster}
	for _, g := range b.gpus {
		h.GPUs = append(h.GPUs, g.name)
	}
	for _, m := range b.models {
		bm := wire.BackendModel{Info: m.Info()}
		for n := 1; n <= m.BatchMax; n++ {
			bm.Profile = append(bm.Profile, int64(m.Profile.Exec(n)))
		}
		h.Models = append(h.Models, bm)
	}
	return h
}

// Attach sets the link that Done goes to, once, after it was opened with Hello and the backend as
// its events.
func (b *Backend) Attach(l control.BackendLink) {
	b.link = l
	close(b.linked)
}

// tell sends a Done. Batches can end before the caller of DialBackend has attached the link.
func (b *Backend) tell(d []wire.Done) {
	select {
	case <-b.linked:
	case <-b.stop:
		return
	}
	if err := b.link.Done(d); err != nil {
		b.log.Debug("done not sent", "err", err)
	}
}

// Ready tells whether batches can come and be run: the scheduler is connected, a GPU answers, and
// nothing is being drained. It may be called from any goroutine.
func (b *Backend) Ready() bool {
	return b.up.Load() && !b.draining.Load() && slices.ContainsFunc(b.gpus, func(g *gpu) bool { return !g.sick() })
}

// Link takes the link's state.
func (b *Backend) Link(up bool, err error) {
	b.up.Store(up)
	if up {
		b.log.Info("scheduler connected", "gpus", len(b.gpus), "models", len(b.models))
		return
	}
	b.session.Add(1)
	b.peers.forget()
	if errors.Is(err, control.ErrClosed) { // by ourselves
		b.log.Info("scheduler left")
		return
	}
	b.log.Warn("scheduler lost", "err", err)
}

// Peers takes the frontends' addresses.
func (b *Backend) Peers(p []wire.Peer) { b.peers.tell(p) }

// Execute takes batches.
func (b *Backend) Execute(batches []wire.Execute) {
	now, session := b.now(), b.session.Load()
	for i := range batches {
		e := &batches[i]
		if err := b.check(e); err != nil {
			b.log.Error("batch refused", "batch", e.Batch, "err", err)
			b.refuse(e, sched.ExecutionFailed, 0)
			continue
		}
		g := b.gpus[e.GPU]
		b.live.Add(1)
		switch {
		case g.sick():
			b.live.Add(-1)
			b.refuse(e, sched.NoBackend, g.pause())
		case !g.accept(e, now, session):
			b.live.Add(-1)
			b.refuse(e, sched.ExecutionFailed, g.pause())
		}
	}
}

func (b *Backend) check(e *wire.Execute) error {
	switch {
	case int(e.GPU) >= len(b.gpus):
		return fmt.Errorf("gpu: %d: this backend has %d", e.GPU, len(b.gpus))
	case int(e.Model) >= len(b.models):
		return fmt.Errorf("model: %d: this backend has %d", e.Model, len(b.models))
	case len(e.Items) == 0 || len(e.Items) > b.models[e.Model].BatchMax:
		return fmt.Errorf("items: %d: model %s runs 1 to %d", len(e.Items), b.models[e.Model].Name, b.models[e.Model].BatchMax)
	}
	return nil
}

// refuse fails a batch that was not accepted, or gives it back (NoBackend), which frontends are not told.
// The link's goroutine only.
func (b *Backend) refuse(e *wire.Execute, reason sched.Reason, pause time.Duration) {
	b.refused = b.refused[:0]
	for i, it := range e.Items {
		b.refused = append(b.refused, wire.ItemFailure{Index: uint32(i), Reason: uint8(reason)})
		if p := b.peers.find(it.Frontend); p != nil && !givenBack(reason) {
			h := wire.ResultHeader{ID: it.ID, Reason: uint8(reason)}
			if p.conn.Load() != nil || !p.owe(h) {
				_ = p.send([][]byte{h.Append(nil)}) // Done tells it too
			}
		}
	}
	b.tell([]wire.Done{{Batch: e.Batch, GPU: e.GPU, FreeIn: int64(pause), Failures: b.refused}})
}

// Drain finishes what was accepted while the scheduler is told to send no more, and returns when
// nothing is left or ctx ends. The link must be up; close it after.
func (b *Backend) Drain(ctx context.Context) error {
	b.draining.Store(true)
	t := time.NewTicker(drainQuiet)
	defer t.Stop()
	for quiet := 0; quiet < 2; quiet++ {
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain: %d batches left: %w", b.live.Load(), ctx.Err())
		case <-t.C:
		}
		if b.live.Load() > 0 {
			quiet = -1
		}
	}
	return nil
}

// Close ends the goroutines, closes the executors and frees the slots. The link must be closed
// before: no event may come any more. What was accepted is finished first; a GPU that hangs keeps
// Close waiting until its executor gives it up.
func (b *Backend) Close() error {
	var errs []error
	b.closing.Do(func() {
		b.cancel()
		for _, g := range b.gpus {
			g.stop()
		}
		close(b.stop)
		b.wait.Wait()
		b.peers.wait.Wait()
		for b.live.Load() > 0 { // reads that a frontend still answers; the data plane bounds them
			time.Sleep(time.Millisecond)
		}
		for _, g := range b.gpus {
			for _, buf := range g.buffers {
				buf.Free()
			}
		}
		for _, o := range b.config.GPUs {
			errs = append(errs, o.Executor.Close())
		}
	})
	return errors.Join(errs...)
}
