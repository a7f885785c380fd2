package device

import (
	"errors"

	"downbeat.dev/core/repo"
)

// ErrLost is wrapped by a Submit or Wait whose GPU is lost for good: no later batch can succeed.
var ErrLost = errors.New("device: GPU lost")

// ErrBusy is wrapped by a Submit that found no room beside the batches that run: when they have ended, the same batch can
// be submitted again. No Submit wraps it while no batch runs.
var ErrBusy = errors.New("device: busy with the batches under way")

// ErrUnsupported is wrapped by a Load of a model that this executor cannot run, but another may.
var ErrUnsupported = errors.New("device: not supported by this executor")

// ErrShape is wrapped by a Prepare or LoadLike whose model has other shapes, or whose weights are part of the code
// compiled for the old ones: the model must be loaded.
var ErrShape = errors.New("device: cannot be updated in place")

// Batch is one execution: the first Rows rows of Slot, as Model's tensors.
type Batch struct {
	Model *Model
	Slot  *Slot
	Rows  int // 1 to Model.BatchMax
}

// Executor runs batches of the models that are loaded on one GPU or core, and changes the loaded models meanwhile.
//
// Batches: Submits come one at a time, Waits one at a time and in the order of the Submits; a Submit may come during
// a Wait if Capabilities says Ahead, otherwise only after it.
//
// Models: Load, Prepare and Unload come one at a time, from any goroutine, while batches of other models run. So do an
// Update's functions, and none of the others comes between Prepare and the end of its Update.
//
// Slots: AddSlot and DropSlot come from any goroutine, while neither a batch nor a Load, Update or Unload is under
// way.
type Executor interface {
	// Capabilities says how to use the executor. It always returns the same value.
	Capabilities() Capabilities

	// AddSlot lets batches run on s, which is at least as large as every loaded model needs. A slot added before
	// stays unchanged.
	AddSlot(s *Slot) error
	// DropSlot ends the use of s, so that its memory may be freed, and frees the resources held for it.
	DropSlot(s *Slot) error

	// Load makes m ready on every slot at every batch size, without running a batch. An error leaves the executor
	// unchanged; it wraps ErrUnsupported if this executor cannot run m.
	Load(m *Model) (Footprint, error)
	// Prepare readies the weights of another version with the same shapes for a loaded m, beside the present ones,
	// which stay in use. An error, which wraps ErrShape if the shapes differ, changes nothing.
	Prepare(m *Model, weights *repo.Model) (Update, error)
	// Unload frees the resources of Load. No batch of m may be under way, and none of its rows may be announced by
	// Early.Arrived.
	Unload(m *Model) error

	// Submit submits b without waiting for it. b runs after the batches submitted before; its rows are final. After
	// an error nothing of b runs and there is no Wait for it. It allocates nothing after warm-up.
	Submit(b Batch) error
	// Wait returns when b has ended: either the outputs of its rows are in the slot, or an error says that none is. A
	// batch that fails does not affect the others, unless the error wraps ErrLost. It allocates nothing after
	// warm-up.
	Wait(b Batch) error

	// Memory returns the memory that the executor holds and has moved. Any goroutine may call it.
	Memory() Memory
	// Close frees everything; no other call may be under way.
	Close() error
}

// Update is weights that an executor holds ready for a loaded model. One of its functions is called, once.
type Update struct {
	// Switch puts them in force: batches submitted before the call use the old weights, batches submitted after its
	// return the new ones. It needs no memory. They are in force also after an error, which says that memory of the old
	// ones is lost.
	Switch func() error
	// Discard frees them.
	Discard func() error
}

// Successor is an executor that makes versions of a loaded model from it.
type Successor interface {
	// LoadLike is Load of m, a version of the loaded like with other weights. m needs no warm-up: what like has
	// prepared, its batches use. The error wraps ErrShape if more than the weights differ.
	LoadLike(m, like *Model) (Footprint, error)
}

// Capabilities describe how to use an executor.
type Capabilities struct {
	// Ahead means that a batch may be submitted while others run. Otherwise Wait runs the batch, on its caller's
	// thread.
	Ahead bool
	// Early takes rows to the GPU while others of their batch are still on their way; nil: the executor takes only
	// whole batches.
	Early Early
	// Passes is how often a batch size must run until it is fully prepared; 0: no warm-up is needed.
	Passes int
	// OnHost means that batches run on the processor.
	OnHost bool
	// Kind names the hardware, equal for all executors that execute alike; Memory is its bytes. Empty and 0: unknown.
	Kind   string
	Memory int64
}

// Early takes rows before their batch is submitted. Any goroutine may call its methods, also for the same slot, for
// loaded models. They allocate nothing.
type Early interface {
	// Arrived announces that input k (AllInputs: every one) of rows from…to−1 of a batch of m is complete in s. It
	// does not change until the batch has been executed on s, or Abandon. The call may do nothing.
	Arrived(m *Model, s *Slot, k, from, to int)
	// Abandon announces that the rows of m in s are about to change, or will not be executed there. After its return
	// nothing reads them. It may be called at any time except while a batch is under way on s.
	Abandon(m *Model, s *Slot)
}

// AllInputs stands for every input of a model.
const AllInputs = -1

// Runner is the part of an Executor that runs batches.
type Runner interface {
	Submit(b Batch) error
	Wait(b Batch) error
}

// Execute runs b while no other batch is under way.
func Execute(e Runner, b Batch) error {
	if err := e.Submit(b); err != nil {
		return err
	}
	return e.Wait(b)
}
