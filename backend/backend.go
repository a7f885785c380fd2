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
	"downbeat.dev/core/limits"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

const (
	drainPause = 30 * time.Second      // sent to the scheduler while draining
	drainQuiet = 20 * time.Millisecond // time for batches that are on their way
)

// Config is what a backend serves. The caller keeps ownership of everything in it, except the executors, which Close
// closes.
type Config struct {
	Name       string // shown by the scheduler
	SubCluster string
	Token      string // of the scheduler
	Models     []*device.Model
	failed     []model.Info    // models that cannot be served, each with a reason
	Loadable   []*device.Model // not loaded at start; the scheduler may ask for them
	GPUs       []GPU
	Node       *Node // the data plane
	// Find reads a model from the repository: the versions that its policy selects, or the requested one. May be nil.
	Find func(ctx context.Context, name, version string) ([]*device.Model, error)
	// MayBeEmpty allows a backend to start without models.
	MayBeEmpty bool
	hostKind   string      // kind of executors on the processor, shared by all hosts that run models alike; empty: unknown
	repository *repository // the target of commands; nil: they are refused
	// Measure returns ℓ(b) of a loaded model, or checks its profile. Other models may be served between two calls of
	// run. May be nil.
	Measure func(ctx context.Context, run measure.Timer, m *device.Model, s *device.Slot) (*Profile, error)
	Logger  *slog.Logger
}

// GPU is one GPU, emulated GPU or core of a backend.
type GPU struct {
	Name string // shown by the scheduler
	// Executors run the models of this GPU, each model on the first that supports it. The first one also determines
	// whether batches are submitted ahead.
	Executors []device.Executor
	Core      int // pin the executors' thread to this core; -1: do not pin
	// Lanes is the number of lanes of the device of which this GPU is one; 0 and 1: it is the whole device. Lanes of one
	// device have the same number Device, and are lost together.
	Lanes, Device int
	lane          int // its index among those of the device
}

// Backend fetches the inputs of batches, executes them and replies.
type Backend struct {
	config     Config
	log        *slog.Logger
	node       *rdma.Node
	gpus       []*gpu
	peers      peers
	holds      holds
	epoch      time.Time
	session    atomic.Uint64 // number of links lost: orders of earlier links are not started any more
	live       atomic.Int64  // orders not recycled yet
	draining   atomic.Bool
	up         atomic.Bool   // the scheduler is connected
	linked     chan struct{} // closed once link is set
	link       control.BackendLink
	stop       chan struct{} // closing it ends the watchdog
	cancel     context.CancelFunc
	wait       sync.WaitGroup
	closing    sync.Once
	refused    []wire.ItemFailure  // owned by the link's goroutine
	placing    chan struct{}       // holds a token while a model is being loaded or unloaded
	placements chan namedPlacement // waiting placements
	lastPlan   atomic.Uint64       // highest plan number of any placement; 0: none

	mu       sync.Mutex
	models   []entry             // by number; guarded by mu, entries are replaced and never changed
	greeted  []wire.BackendModel // the models of the hello; guarded by mu
	spares   []*SpareWork        // by number; guarded by mu
	lessons  map[string]Learner  // by model; guarded by mu
	taught   []lessonName        // the latest; guarded by mu
	commands limits.Commands     // in progress; guarded by mu
	learnt   learnt              // the version that is being published; owned by the holder of placing
	retired  []retired           // guarded by mu; only the holder of placing adds and removes any

	numberRest   time.Duration
	loadCallMost time.Duration
	renumbered   bool // later hellos have other models by the same numbers; guarded by mu

	// spareWeights is held while spare work is weighed and offered, so that no offer overtakes a later one.
	spareWeights sync.Mutex
	weigh        func(values []float64) []float64 // nil: all have the weight 1; guarded by spareWeights

	samplers atomic.Pointer[map[string]*sampler] // by model; nil: no model is sampled

	spareLoops sync.WaitGroup

	// State of loads and unloads by command or polling:
	unserved []model.Info // the unserved models as reported to the scheduler; guarded by mu
	renewed  bool         // later sessions need a new hello; guarded by mu
}

// New loads every model on every GPU and starts the goroutines. A model that cannot be loaded or has no profile is
// left out and logged. Without any model or GPU it fails, and nothing is left running.
func New(c Config) (*Backend, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}

	ctx, cancel := context.WithCancel(context.Background())
	b := &Backend{config: c, log: c.Logger, node: c.Node, epoch: time.Now(),
		linked: make(chan struct{}), stop: make(chan struct{}), cancel: cancel,
		placing: make(chan struct{}, 1), placements: make(chan namedPlacement, placementsMax), numberRest: numberRest, loadCallMost: loadCallMost, commands: limits.Commands{Most: commandsMax}}
	b.peers = peers{node: c.Node, log: c.Logger, byID: map[uint32]*peer{}, nodes: map[uint32]*peer{}, ctx: ctx}

	// No link exists yet: models loaded here become part of the hello.
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

// loadAll opens the GPUs and loads every model on each of them. It leaves out models that fail.
func (b *Backend) loadAll(ctx context.Context) error {
	// Every slot holds the largest batch of any model, so each batch fits each slot.
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
		// A model that is left out must not keep its number, because numbers are indices of the hello's models.
		before := b.modelEntries()
		switch err := b.loadEverywhere(ctx, b.numberOf(m), m); {
		case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded): // interrupted while measuring
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

// sayUnpinned warns of slots that the GPUs copy from slowly.
func (b *Backend) sayUnpinned() {
	for _, g := range b.gpus {
		if n := g.sumMemory().Unpinned; n > 0 {
			b.log.Warn("memory that batches are copied from is not pinned: copies are slower and do not overlap; raise the limit on locked memory (ulimit -l)",
				"gpu", g.name, "slots", n, "of", slotsEach)
		}
	}
}

// now returns the backend's clock.
func (b *Backend) now() time.Duration { return time.Since(b.epoch) }

// labelBytesMost bounds the class names of all models to half of the one frame that a hello takes.
const labelBytesMost = wire.FrameBytesMax / 2

// limitLabels drops class names that do not fit into a hello. Classification then answers with indices alone; a hello
// that is too long would leave every model unserved.
func (b *Backend) limitLabels(models []wire.BackendModel) {
	// The first models keep their names; those that exceed the limit lose theirs.
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
				info.Outputs = slices.Clone(info.Outputs) // the repository keeps its own copy
				info.Outputs[k].Labels = nil
				total -= size
			}
		}
	}
}

// Ready reports whether batches can arrive and run: the scheduler is connected, a GPU answers, and no drain is in
// progress. It may be called from any goroutine.
func (b *Backend) Ready() bool {
	return b.up.Load() && !b.draining.Load() && slices.ContainsFunc(b.gpus, func(g *gpu) bool { return !g.isSick() && g.inRow.Load() < failingMin })
}

// Drain tells the scheduler to send no more, and returns when all accepted batches have ended or ctx ends. The link
// must be up; close it afterwards.
func (b *Backend) Drain(ctx context.Context) error {
	b.draining.Store(true)
	t := time.NewTicker(drainQuiet)
	defer t.Stop()

	// A batch may have been sent before the scheduler read the message: two quiet looks in a row mean the end.
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

// Close ends the goroutines, closes the executors and frees the slots. The link must be closed before, so that no
// event follows. Accepted batches finish first; a hanging GPU delays Close until its executor gives it up.
func (b *Backend) Close() error {
	var errs []error
	b.closing.Do(func() {
		// Commands and connecting end first, then the GPUs finish their batches.
		b.cancel()
		for _, g := range b.gpus {
			g.stopLoops()
		}
		close(b.stop)
		b.holds.closeHolds()

		b.wait.Wait()
		b.awaitSpare()
		b.peers.wait.Wait()
		for b.live.Load() > 0 { // reads in progress; the data plane bounds them
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

		for _, o := range b.config.GPUs[len(b.gpus):] { // loadAll did not reach these
			errs = append(errs, closeExecutors(o.Executors))
		}
	})
	return errors.Join(errs...)
}
