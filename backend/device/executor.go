package device

import (
	"errors"
	"time"
)

// ErrLost is wrapped by an Execute whose GPU is gone for good: no later batch can succeed.
var ErrLost = errors.New("device: GPU lost")

// ErrBusy is wrapped by a Submit that found no room beside the batches under way: once they have ended, the same
// batch can be submitted again. With nothing under way no Submit wraps it.
var ErrBusy = errors.New("device: busy with the batches under way")

// Batch is one execution: the first Rows rows of Slot, as Model's tensors.
type Batch struct {
	Model *Model
	Slot  *Slot
	Rows  int // 1 to Model.BatchMax
}

// Executor runs batches on one GPU (or core), one at a time. All calls come from one goroutine,
// which is locked to its thread if the backend was told to pin it.
type Executor interface {
	// Load makes m ready on every slot, at every batch size, and warms it up. Slots are as large as
	// SlotBytes says of every model to be loaded. An error leaves other models untouched.
	Load(m *Model, slots []*Slot) error
	// Execute reads the inputs of b's rows, fills their outputs, and returns when they are there.
	// It allocates nothing after warm-up. An error means that no row has an output; one that wraps
	// ErrLost, that the executor is of no more use.
	Execute(b Batch) error
	// Close frees everything. Execute may not be under way.
	Close() error
}

// Ahead is an executor that takes a batch while those before it run or copy their outputs. Execute is Submit and
// Wait, with nothing else under way. Submits come one at a time, and Waits one at a time and in the order of the
// Submits, but a Submit may come during a Wait. They allocate nothing after warm-up.
type Ahead interface {
	// Submit hands b over and returns without waiting for it. b runs behind what was submitted before; its rows are
	// as they will be. After an error, which says what Execute's would, nothing of b runs and there is no Wait for it.
	Submit(b Batch) error
	// Wait returns when b has ended, with Execute's result. A batch that fails leaves the others alone, unless the
	// error wraps ErrLost.
	Wait(b Batch) error
}

// AllInputs stands for every input of a model.
const AllInputs = -1

// Early is an executor that can take rows to its GPU while others of their batch are still on their way.
// Its methods may be called from any goroutine once every model is loaded, those of one slot, too. They allocate
// nothing.
type Early interface {
	// Arrived tells that input k (AllInputs: every one) of rows from…to−1 of a batch of m is complete in s. It stays
	// as it is until the batch has been executed on s, or Abandon. It may do nothing.
	Arrived(m *Model, s *Slot, k, from, to int)
	// Abandon tells that the rows of m in s are about to change, or will not be executed there. When it returns
	// nothing reads them any more. It may be called at any time but while a batch is under way on s.
	Abandon(m *Model, s *Slot)
}

// Memory is what an executor that keeps models in a GPU's memory has moved since its start.
type Memory struct {
	DeviceBytes, PinnedBytes   int64  // held now: on the GPU, and of evicted contents in pinned memory
	Hits                       uint64 // contents that were on the GPU when a batch needed them
	LoadsPinned, LoadsPageable uint64 // that were not, by where they were
	ToPinned, ToPageable       uint64 // evictions, by where to
	Freed                      uint64 // intermediates that ended with their batch
	BytesIn, BytesOut          uint64
	Unpinned                   uint64        // evictions to pinned memory that got pageable memory
	LoadTime                   time.Duration // that loads took on the GPU
}

// Choosy is an executor that leaves some models to another one. Aside says why m is among them, nil if it is not;
// it may be called from any goroutine once m is loaded.
type Choosy interface{ Aside(m *Model) error }

// Pinning is an executor whose copies want pinned slots. Unpinned returns how many of those that it was given could
// not be pinned, so that their copies are slower and do not overlap; it may be called from any goroutine once every
// model is loaded.
type Pinning interface{ Unpinned() int }

// Resident is an executor that counts what it moves. Memory may be called from any goroutine.
type Resident interface{ Memory() Memory }
