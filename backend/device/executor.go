package device

import "errors"

// ErrLost is wrapped by an Execute whose GPU is gone for good: no later batch can succeed.
var ErrLost = errors.New("device: GPU lost")

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
