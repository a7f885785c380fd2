package devicetest

import (
	"errors"

	"downbeat.dev/backend/device"
)

// Load gives e the slots, loads m and warms it up on the first slot, as a backend does.
func Load(e device.Executor, m *device.Model, slots []*device.Slot) error {
	for _, s := range slots {
		if err := e.AddSlot(s); err != nil {
			return err
		}
	}

	// Slots come first: Load makes the model ready on each of them.
	f, err := e.Load(m)
	if err != nil {
		return err
	}

	// A model that cannot run on its samples is not served: nothing of it may stay.
	err = device.WarmUp(m, slots[0], e.Capabilities().Passes, f.Warm, func(b device.Batch) error { return device.Execute(e, b) })
	if err != nil {
		return errors.Join(err, e.Unload(m))
	}
	return nil
}
