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
	"downbeat.dev/backend/measure"
	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
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
	failed     []model.Info    // models that cannot be served, with the reason each
	Loadable   []*device.Model // that are not loaded at start; the scheduler may ask for them
	GPUs       []GPU
	Node       *Node // the data plane
	// Find reads a model from the repository: the versions that its policy serves, or the one that is asked for. May be nil.
	Find func(ctx context.Context, name, version string) ([]*device.Model, error)
	// MayBeEmpty lets a backend start that has nothing to serve yet.
	MayBeEmpty bool
	hostKind   string      // of executors on the processor, which all hosts have that run models alike; empty: not known
	repository *repository // what commands are about; nil: they are refused
	// Measure returns ℓ(b) of a loaded model, or checks the one that it has. Other models may be served between two
	// calls of run. May be nil.
	Measure func(ctx context.Context, run measure.Timer, m *device.Model, s *device.Slot) (*Profile, error)
	Logger  *slog.Logger
}

// GPU is one GPU, emulated GPU or core of a backend.
type GPU struct {
	Name string // shown by the scheduler
	// Executors run the models of this GPU, each model on the first that supports it. The first also says whether
	// batches are submitted ahead.
	Executors []device.Executor
	Core      int // pin the executors' thread to this core; -1: do not pin
}

// Backend fetches, executes and replies.
type Backend struct {
	config     Config
	log        *slog.Logger
	node       *rdma.Node
	gpus       []*gpu
	peers      peers
	holds      holds
	epoch      time.Time
	session    atomic.Uint64 // counts links lost: what an earlier one sent is not started any more
	live       atomic.Int64  // orders that are not recycled
	draining   atomic.Bool
	up         atomic.Bool   // the scheduler is connected
	linked     chan struct{} // closed once link is set
	link       control.BackendLink
	stop       chan struct{} // ends the watchdog
	cancel     context.CancelFunc
	wait       sync.WaitGroup
	closing    sync.Once
	refused    []wire.ItemFailure  // the link's goroutine's
	placing    chan struct{}       // holds a token while a model is being loaded or unloaded
	placements chan wire.Placement // that wait
	lastPlan   atomic.Uint64       // number of the latest plan of which placements came; 0: of none
	commands   chan struct{}       // holds a token for each command under way

	mu      sync.Mutex
	models  []entry             // by number; guarded by mu, entries are replaced and never changed
	greeted []wire.BackendModel // what the hello said; guarded by mu
	spares  []*SpareWork        // by number; guarded by mu
	lessons map[string]Learner  // by model; guarded by mu
	learnt  string              // the model whose learnt version is being loaded; whoever is placing has it

	samplers atomic.Pointer[map[string]*sampler] // by model; nil: no model is sampled

	spareLoops sync.WaitGroup

	// Since models were loaded or unloaded by command, or by polling:
	unserved []model.Info // what the scheduler was told of models that are not served; guarded by mu
	renewed  bool         // later sessions open with another hello; guarded by mu
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
		linked: make(chan struct{}), stop: make(chan struct{}), cancel: cancel,
		placing: make(chan struct{}, 1), placements: make(chan wire.Placement, placementsMax), commands: make(chan struct{}, commandsMax)}
	b.peers = peers{node: c.Node, log: c.Logger, byID: map[uint32]*peer{}, nodes: map[uint32]*peer{}, ctx: ctx}

	// Nothing listens yet: what is loaded here is part of the hello.
	if err := b.loadAll(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	c.Node.ReceiveWith(b.receiveMessage)
	for _, g := range b.gpus {
		g.startLoops()
	}

	b.wait.Add(2)
	go b.watchdog()
	go b.carryOut(ctx)
	return b, nil
}

// loadAll makes the GPUs and loads every model on each of them. A model that fails is left out.
func (b *Backend) loadAll(ctx context.Context) error {
	// Every slot holds the largest batch of any model, so that each batch fits into each slot.
	size := device.SlotBytes(b.config.Models)
	for i, o := range b.config.GPUs {
		g := newGPU(b, i, o)
		b.gpus = append(b.gpus, g)
		if err := g.allocateSlots(size); err != nil {
			return err
		}
	}
	if len(b.gpus) == 0 {
		return errors.New("backend has no GPUs; it needs one at least")
	}

	var failed []error
	for _, m := range b.config.Models {
		// A model that is left out must not keep its number: numbers are indices of the hello's models.
		before := b.modelEntries()
		switch err := b.loadEverywhere(ctx, b.numberOf(m), m); {
		case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded): // told to stop while measuring
			return err
		case err != nil:
			b.log.Error("model left out", "model", m.Name, "version", m.Version, "err", err)
			failed = append(failed, err)
			b.config.failed = append(b.config.failed, failedModel(m.Name, m.Version, err))
			b.noteFailure(m.Name, m.Version, err)
			b.mu.Lock()
			b.models = before
			b.mu.Unlock()
		}
	}

	// They have numbers from the start, so that the scheduler can ask for them.
	for _, m := range b.config.Loadable {
		b.numberOf(m)
	}
	if len(b.modelEntries()) == 0 && !b.config.MayBeEmpty {
		return errors.Join(fmt.Errorf("backend has %d GPUs and no model that it can serve; it needs one at least", len(b.gpus)), errors.Join(failed...))
	}
	b.sayUnpinned()
	return nil
}

// sayUnpinned warns of slots that the GPUs' copies are slow from.
func (b *Backend) sayUnpinned() {
	for _, g := range b.gpus {
		if n := g.sumMemory().Unpinned; n > 0 {
			b.log.Warn("memory that batches are copied from is not pinned: copies are slower and do not overlap; raise the limit on locked memory (ulimit -l)",
				"gpu", g.name, "slots", n, "of", slotsEach)
		}
	}
}

// now is the backend's clock.
func (b *Backend) now() time.Duration { return time.Since(b.epoch) }

// labelBytesMost is what the class names of all models may take: half of the one frame that a hello is.
const labelBytesMost = wire.FrameBytesMax / 2

// limitLabels leaves out the class names that do not fit into a hello: classification then answers with
// indices alone, where a hello too long would leave every model unserved.
func (b *Backend) limitLabels(models []wire.BackendModel) {
	total := 0
	for i := range models {
		info := &models[i].Info
		for k, t := range info.Outputs {
			size := 0
			for _, label := range t.Labels {
				size += 2 + len(label)
			}

			if total += size; total > labelBytesMost {
				b.log.Warn("class names left out: those of all models together are too long", "model", info.Name, "output", t.Name,
					"bytes", size, "most", labelBytesMost)
				info.Outputs = slices.Clone(info.Outputs) // the repository keeps its own
				info.Outputs[k].Labels = nil
				total -= size
			}
		}
	}
}

// Ready tells whether batches can come and be run: the scheduler is connected, a GPU answers, and
// nothing is being drained. It may be called from any goroutine.
func (b *Backend) Ready() bool {
	return b.up.Load() && !b.draining.Load() && slices.ContainsFunc(b.gpus, func(g *gpu) bool { return !g.isSick() && g.inRow.Load() < failingMin })
}

// Drain finishes what was accepted while the scheduler is told to send no more, and returns when
// nothing is left or ctx ends. The link must be up; close it after.
func (b *Backend) Drain(ctx context.Context) error {
	b.draining.Store(true)
	t := time.NewTicker(drainQuiet)
	defer t.Stop()

	// The scheduler may have sent a batch before it heard: two quiet looks in a row are the end.
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
		// Commands and connecting end first, then the GPUs finish what they have.
		b.cancel()
		for _, g := range b.gpus {
			g.stopLoops()
		}
		close(b.stop)
		b.holds.closeHolds()

		b.wait.Wait()
		b.awaitSpare()
		b.peers.wait.Wait()
		for b.live.Load() > 0 { // reads that a frontend still answers; the data plane bounds them
			time.Sleep(time.Millisecond)
		}

		for _, g := range b.gpus {
			for _, e := range g.executors {
				errs = append(errs, e.Close())
			}
			for _, buf := range g.buffers {
				buf.Free()
			}
		}

		for _, o := range b.config.GPUs[len(b.gpus):] { // load has not come to them
			errs = append(errs, closeExecutors(o.Executors))
		}
	})
	return errors.Join(errs...)
}
