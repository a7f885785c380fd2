//go:build linux

package frontendtest

import (
	"fmt"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/repo"
)

// executor runs batches by the models' functions, on the thread of Wait.
type executor struct{ models map[string]Model }

// Capabilities implements device.Executor: one batch at a time.
func (e *executor) Capabilities() device.Capabilities { return device.Capabilities{OnHost: true} }

// AddSlot implements device.Executor.
func (e *executor) AddSlot(*device.Slot) error { return nil }

// DropSlot implements device.Executor.
func (e *executor) DropSlot(*device.Slot) error { return nil }

// Load implements device.Executor.
func (e *executor) Load(m *device.Model) (device.Footprint, error) {
	if _, ok := e.models[m.Name]; !ok {
		return device.Footprint{}, fmt.Errorf("model %q: %w", m.Name, device.ErrUnsupported)
	}
	return device.Footprint{Warm: true}, nil
}

// Prepare implements device.Executor: a function has no weights.
func (e *executor) Prepare(*device.Model, *repo.Model) (device.Update, error) {
	nothing := func() error { return nil }
	return device.Update{Switch: nothing, Discard: nothing}, nil
}

// Unload implements device.Executor.
func (e *executor) Unload(*device.Model) error { return nil }

// Submit implements device.Executor.
func (e *executor) Submit(device.Batch) error { return nil }

// Wait runs the batch for as long as its profile says, or as its function takes.
func (e *executor) Wait(b device.Batch) error {
	ends := time.Now().Add(b.Model.Profile.Exec(b.Rows))
	m := e.models[b.Model.Name]
	for i := range b.Rows {
		for k := range b.Model.Outputs {
			// Outputs are zeros unless the function sets them; the slot has those of an earlier batch.
			clear(b.Slot.OutputRow(b.Model, k, i))
		}
		if m.Answer == nil {
			continue
		}
		if err := m.Answer(Row{model: b.Model, slot: b.Slot, index: i}); err != nil {
			return fmt.Errorf("model %q: row %d: %w", m.Name, i, err)
		}
	}

	// The scheduler plans with the profile: a batch that ended early would make it wrong.
	time.Sleep(time.Until(ends))
	return nil
}

// Memory implements device.Executor.
func (e *executor) Memory() device.Memory { return device.Memory{} }

// Close implements device.Executor.
func (e *executor) Close() error { return nil }
