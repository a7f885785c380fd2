package layered

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"downbeat.dev/backend/train"
	"downbeat.dev/core/limits"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/layers"
)

// Trainer is a train.Stepper whose steps run on a GPU as a layered program, on a stream of lower priority than batches.
// A step can stop after any layer and continue later.
//
// A Trainer keeps its own runtime and memory until Close. So no batch waits for the memory of a stopped step, and no
// step evicts a batch's parameters. Weights and moments are inputs and outputs of the program, in two sets that are
// exchanged after each step.
type Trainer struct {
	dev     *cuda.Device
	net     train.Net
	options train.Options
	runtime *executor.Runtime
	model   *executor.Model
	inputs  []string // of the program, in its order
	outputs []string
	stream  *cuda.Stream
	copied  *cuda.Event
	memory  stepMemory
	pass    *executor.Pass  // a step under way
	now     int             // the set of vectors with the weights
	step    int             // steps that have ended
	took    []time.Duration // by layer, about; 0: unknown
}

var _ train.Stepper = (*Trainer)(nil)

// trainerRoom is device memory beyond a program's parameters and activations, for gaps between them.
const trainerRoom = 1 << 20

// NewTrainer returns a Trainer on the executor's device, to be closed before it.
func (e *Executor) NewTrainer(net train.Net, o train.Options) (train.Stepper, error) {
	t, err := NewTrainer(e.Device(), net, o)
	if err != nil {
		return nil, err // no Stepper, rather than one that is nil within
	}
	return t, nil
}

// NewTrainer compiles the net's training step for dev, which stays the caller's and may run batches meanwhile.
func NewTrainer(dev *cuda.Device, net train.Net, o train.Options) (*Trainer, error) {
	m, weights, err := net.Training(o)
	if err != nil {
		return nil, err
	}

	g, err := Graph(m)
	if err != nil {
		return nil, fmt.Errorf("training graph of %s: %w", net.Name, err)
	}

	t := &Trainer{dev: dev, net: net, options: o, outputs: g.Outputs}
	for _, in := range g.Inputs {
		t.inputs = append(t.inputs, in.Name)
	}

	if err := t.open(g, weights); err != nil {
		return nil, errors.Join(fmt.Errorf("training of %s on %s: %w", net.Name, dev.Properties().Name, err), t.Close())
	}
	return t, nil
}

func (t *Trainer) open(g *layers.Graph, weights []float32) (err error) {
	// All dimensions of a training graph are fixed: it runs as a batch of one.
	p, err := layers.Compile(g, 1, layers.FP32)
	if err != nil {
		return err
	}

	// Libraries and tuning would use the device for long, beside its batches.
	bytes := p.ActivationBytes + p.ParamBytes() + trainerRoom
	if t.runtime, err = executor.Open(t.dev, executor.Config{DeviceBytes: bytes, Hang: limits.Moves, Libraries: "none"}); err != nil {
		return err
	}

	if t.model, err = t.runtime.Load(g, executor.Options{BatchMax: 1}); err != nil {
		return err
	}
	t.took = make([]time.Duration, len(p.Layers))

	if t.stream, err = t.dev.NewSpareStream(); err != nil {
		return err
	}
	if t.copied, err = t.dev.NewEvent(); err != nil {
		return err
	}

	if t.memory, err = allocStep(t.dev, t.net, t.options.Batch, len(weights)); err != nil {
		return err
	}
	return t.SetWeights(weights)
}

// Begin implements train.Stepper.
func (t *Trainer) Begin(images []byte, targets []float32, rate float64) error {
	host := &t.memory.host
	if len(images) != len(host.image) || len(targets) != len(host.target) {
		return fmt.Errorf("step: %d image bytes and %d target floats: want %d and %d", len(images), len(targets), len(host.image), len(host.target))
	}

	if err := t.abandonPass(); err != nil {
		return err
	}

	copy(host.image, images)
	copy(host.target, targets)
	host.rate[0] = float32(t.options.Optimiser.CorrectedRate(rate, t.step+1))

	var s cuda.Submission
	t.memory.copyBatch(&s, t.stream)
	if err := t.dev.Submit(&s); err != nil {
		return err
	}

	// A layer follows these copies on the stream.
	var err error
	t.pass, err = t.model.Begin(t.stream, 1, t.addressesOf(t.inputs), t.addressesOf(t.outputs))
	return err
}

// Advance implements train.Stepper.
func (t *Trainer) Advance(limit time.Duration) (done bool, loss float32, err error) {
	if t.pass == nil {
		return false, 0, errors.New("no step was begun")
	}

	for began, first := time.Now(), true; ; first = false {
		all, ran := t.pass.Layers()
		if ran == all {
			break
		}

		left := time.Duration(math.MaxInt64)
		if limit > 0 {
			left = limit - time.Since(began)
		}
		n, expected := t.nextPart(ran, min(left, partMost))

		// One part at least runs, so that every call comes closer to the end.
		if expected > left && !first {
			return false, 0, nil
		}
		if err := t.runPart(ran, n, expected); err != nil {
			return false, 0, fmt.Errorf("step %d of %s: %w", t.step+1, t.net.Name, err)
		}
	}
	return t.finish()
}

// partMost is the time of the layers that run at once: an upper bound for how late a step stops.
const partMost = 250 * time.Microsecond

// nextPart returns how many layers to run at once and their expected duration, which is at most most unless one layer
// alone takes longer. A layer that has never run is measured alone.
func (t *Trainer) nextPart(from int, most time.Duration) (n int, expected time.Duration) {
	for _, took := range t.took[from:] {
		if n > 0 && (took == 0 || expected+took > most) {
			break
		}
		n, expected = n+1, expected+took
		if took == 0 {
			break
		}
	}
	return n, expected
}

// runPart runs n layers and corrects the estimates of their durations.
func (t *Trainer) runPart(from, n int, expected time.Duration) error {
	began := time.Now()
	if err := t.pass.Advance(n, limits.Device(0)); err != nil {
		return err
	}

	took := time.Since(began)
	for i := from; i < from+n; i++ {
		if expected == 0 {
			t.took[i] = max(1, took/time.Duration(n))
			continue
		}
		// Correct by a quarter of the difference: another process may have slowed this part down.
		t.took[i] += time.Duration(float64(t.took[i]) * (float64(took)/float64(expected) - 1) / 4)
	}
	return nil
}

// finish fetches the results of a step whose layers have all run, and makes its weights the current ones.
func (t *Trainer) finish() (done bool, loss float32, err error) {
	var s cuda.Submission
	t.memory.copyResults(&s, t.stream, 1-t.now)
	if err := errors.Join(t.submitAndWait(&s), t.abandonPass()); err != nil {
		return false, 0, fmt.Errorf("step %d of %s: %w", t.step+1, t.net.Name, err)
	}

	t.now = 1 - t.now
	t.step++
	loss = t.memory.host.loss[0]
	return true, loss, t.net.CheckLoss(t.step, loss)
}

// abandonPass ends the step under way, if any; its layers have ended.
func (t *Trainer) abandonPass() error {
	p := t.pass
	t.pass = nil
	if p == nil {
		return nil
	}
	return p.End()
}

func (t *Trainer) submitAndWait(s *cuda.Submission) error {
	s.Record(t.stream, t.copied)
	if err := t.dev.Submit(s); err != nil {
		return err
	}
	return t.dev.WaitFor(limits.Moves, t.copied)
}

// addressesOf returns where the tensors of a step lie.
func (t *Trainer) addressesOf(names []string) (all []cuda.Address) {
	for _, name := range names {
		all = append(all, t.memory.addressOf(name, t.now))
	}
	return all
}

// Weights implements train.Stepper.
func (t *Trainer) Weights() []float32 { return t.memory.host.weights }

// SetWeights implements train.Stepper.
func (t *Trainer) SetWeights(weights []float32) error {
	host := t.memory.host.weights
	if len(weights) != len(host) {
		return fmt.Errorf("weights: %d numbers: the net %s takes %d", len(weights), t.net.Name, len(host))
	}

	if err := t.abandonPass(); err != nil {
		return err
	}

	copy(host, weights)
	t.step = 0
	var s cuda.Submission
	t.memory.copyWeights(&s, t.stream, t.now)
	return t.submitAndWait(&s)
}

// Close implements train.Stepper. The device stays open.
func (t *Trainer) Close() error {
	err := t.abandonPass()
	if t.model != nil {
		err = errors.Join(err, t.model.Close())
	}

	if t.runtime != nil {
		t.runtime.Close()
	}
	t.memory.freeMemory()
	t.copied.Free()
	t.stream.Free()
	t.model, t.runtime, t.copied, t.stream = nil, nil, nil, nil

	if t.dev.Err() != nil {
		return nil // a lost device reports an error for each call
	}
	return err
}

// floatsOf returns bytes of pinned memory as floats.
func floatsOf(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
