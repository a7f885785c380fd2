package device

import (
	"errors"

	"downbeat.dev/core/repo"
)

// ErrLost is wrapped by a Submit or Wait whose GPU is gone for good: no later batch can succeed.
var ErrLost = errors.New("device: GPU lost")

// ErrBusy is wrapped by a Submit that found no room beside the batches under way: once they have ended, the same
// batch can be submitted again. With nothing under way no Submit wraps it.
var ErrBusy = errors.New("device: busy with the batches under way")

// ErrUnsupported is wrapped by a Load that another executor may do better: this one does not run such models.
var ErrUnsupported = errors.New("device: not supported by this executor")

// ErrShape is wrapped by an Update whose model has other shapes, or whose weights are part of the code that was made
// for the old ones: it must be unloaded and loaded.
var ErrShape = errors.New("device: cannot be updated in place")

// Batch is one execution: the first Rows rows of Slot, as Model's tensors.
type Batch struct {
	Model *Model
	Slot  *Slot
	Rows  int // 1 to Model.BatchMax
}

// Executor runs batches of the models that are loaded on one GPU or core, and changes what is loaded meanwhile.
//
// Batches: Submits come one at a time, Waits one at a time and in the order of the Submits; a Submit may come during a
// Wait if Capabilities says Ahead, else only after it.
//
// Models: Load, Update and Unload come one at a time, from any goroutine, while batches of other models run.
//
// Slots: AddSlot and DropSlot come from any goroutine, while neither a batch nor a Load, Update or Unload is under way.
type Executor interface {
	// Capabilities says how the executor is to be used. It is the same at every call.
	Capabilities() Capabilities

	// AddSlot lets batches run on s, at least as large as every loaded model needs. A slot that it has stays as it is.
	AddSlot(s *Slot) error
	// DropSlot ends the use of s, so that its memory may be freed, and gives back what was held for it.
	DropSlot(s *Slot) error

	// Load makes m ready on every slot at every batch size, without running a batch. An error leaves the executor
	// as it was; it wraps ErrUnsupported where m is no model for it.
	Load(m *Model) (Footprint, error)
	// Update replaces the weights of a loaded m by those of another version of it with the same shapes: batches that
	// were submitted before it is called run with the old ones, batches that are submitted after it has returned with
	// the new ones. After an error, which wraps ErrShape where the shapes differ, the old ones stay.
	Update(m *Model, weights *repo.Model) error
	// Unload frees what Load took. No batch of m may be under way, nor any of its rows told of by Early.Arrived.
	Unload(m *Model) error

	// Submit hands b over without waiting for it. b runs behind what was submitted before; its rows are as they will
	// be. After an error nothing of b runs and there is no Wait for it. It allocates nothing after warm-up.
	Submit(b Batch) error
	// Wait returns when b has ended: the outputs of its rows are there, or an error says that none is. A batch that
	// fails leaves the others alone, unless the error wraps ErrLost. It allocates nothing after warm-up.
	Wait(b Batch) error

	// Memory tells what the executor holds and has moved. It may be called from any goroutine.
	Memory() Memory
	// Close frees everything; no other call may be under way.
	Close() error
}

// Capabilities is how an executor is to be used.
type Capabilities struct {
	// Ahead says that a batch may be submitted while others run. Else Wait runs the batch, on its caller's thread.
	Ahead bool
	// Early takes rows to the GPU while others of their batch are still on their way; nil: it takes whole batches.
	Early Early
	// Passes is how often a batch size must run until all of it is prepared; 0: there is nothing to warm up.
	Passes int
	// OnHost says that batches run on the processor.
	OnHost bool
	// Kind names what executes, alike on all that execute alike; Memory is its bytes. Empty and 0: not known.
	Kind   string
	Memory int64
}

// Early takes rows before their batch is submitted. Its methods may be called from any goroutine, those of one slot,
// too, for models that are loaded. They allocate nothing.
type Early interface {
	// Arrived tells that input k (AllInputs: every one) of rows from…to−1 of a batch of m is complete in s. It stays
	// as it is until the batch has been executed on s, or Abandon. It may do nothing.
	Arrived(m *Model, s *Slot, k, from, to int)
	// Abandon tells that the rows of m in s are about to change, or will not be executed there. When it returns
	// nothing reads them any more. It may be called at any time but while a batch is under way on s.
	Abandon(m *Model, s *Slot)
}

// AllInputs stands for every input of a model.
const AllInputs = -1

// Runner is the part of an Executor that runs batches.
type Runner interface {
	Submit(b Batch) error
	Wait(b Batch) error
}

// Execute runs b with nothing else under way.
func Execute(e Runner, b Batch) error {
	if err := e.Submit(b); err != nil {
		return err
	}
	return e.Wait(b)
}
