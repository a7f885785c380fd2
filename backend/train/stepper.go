package train

import (
	"errors"
	"fmt"
	"time"
)

// Stepper holds a net's weights and runs training steps. A Trainer does so with ONNX Runtime, layered.Trainer on a GPU;
// traintest has the contract of both. It belongs to one goroutine.
type Stepper interface {
	// Begin sets the batch of the next step: images are Batch·H·W·3 bytes, targets Batch·TargetLen floats. A step that
	// has not ended is given up, and the weights stay.
	Begin(images []byte, targets []float32, rate float64) error
	// Advance works on the step begun: to its end, or, if it can stop, for about limit; 0: without a limit. done says
	// that the step has ended, with the mean loss before it. The error of a loss that is not a number comes with the
	// loss, and with useless weights; any other leaves the weights unchanged and says that the machine failed.
	Advance(limit time.Duration) (done bool, loss float32, err error)
	// Weights returns the flat weight vector as of the last step that has ended, valid until the next Advance or
	// SetWeights; do not change it.
	Weights() []float32
	// SetWeights starts again from other weights, with a new optimiser state, and gives up a step under way.
	SetWeights(weights []float32) error
	// Close frees everything.
	Close() error
}

var _ Stepper = (*Trainer)(nil)

var errNotBegun = errors.New("no step was begun")

// CheckLoss returns an error for a loss that is not a number: no later step would repair it.
func (n Net) CheckLoss(step int, loss float32) error {
	if loss == loss { // only NaN differs from itself
		return nil
	}
	return fmt.Errorf("step %d of %s: the loss is not a number", step, n.Name)
}
