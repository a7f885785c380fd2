package layered

import (
	"errors"
	"fmt"
	"sync/atomic"

	"downbeat.dev/backend/accel"
	"downbeat.dev/cuda"
	"downbeat.dev/cuda/executor"
	"downbeat.dev/cuda/residency"
)

// splitDevice is a device that several executors have, each a lane of it. The last one closes it.
type splitDevice struct {
	dev   *cuda.Device
	lanes int
	bytes int64 // of a lane, for models
	users atomic.Int64
}

// leave ends a lane's use of the device.
func (s *splitDevice) leave() error {
	if s.users.Add(-1) > 0 {
		return nil
	}
	return s.dev.Close()
}

// NewLanes takes over dev and returns executors that run batches beside each other, each with an equal part of the memory
// in c; on an error it closes dev. Each has streams, kernels, parameters and captured graphs of its own, so that none
// waits for another's lock. The caller must Close all of them.
func NewLanes(dev *cuda.Device, c Config, lanes int) ([]*Executor, error) {
	// The first lane's memory would count as taken, so the parts are determined before.
	if err := c.fillDefaults(dev); err != nil {
		return nil, errors.Join(fmt.Errorf("open layered executor: %w", err), dev.Close())
	}

	if lanes < 2 {
		e, err := newPart(dev, c, nil)
		return []*Executor{e}, err
	}
	c.DeviceBytes, c.PinnedBytes = c.DeviceBytes/int64(lanes), c.PinnedBytes/int64(lanes)

	split := &splitDevice{dev: dev, lanes: lanes, bytes: c.DeviceBytes}
	split.users.Add(1) // of this function, so that a lane that fails leaves the device open
	var all []*Executor
	for i := range lanes {
		e, err := newPart(dev, c, split)
		if err != nil {
			err = fmt.Errorf("lane %d of %d: %w", i+1, lanes, err)
			for _, opened := range all {
				err = errors.Join(err, opened.Close())
			}
			return nil, errors.Join(err, split.leave())
		}
		all = append(all, e)
	}
	return all, split.leave()
}

// newPart opens an executor on dev. Without a split it owns dev, and on an error closes it.
func newPart(dev *cuda.Device, c Config, split *splitDevice) (*Executor, error) {
	e := &Executor{split: split}
	config := accel.Config{Compile: e.compile, Timeout: c.Timeout, Held: e.heldMemory}
	if split != nil {
		config.Borrowed, config.Lanes = true, split.lanes
	}

	err := e.openRuntime(dev, c)
	if err != nil {
		err = fmt.Errorf("open layered executor: %w", err)
		if split == nil {
			err = errors.Join(err, dev.Close())
		}
		return nil, err
	}

	config.Close = e.runtime.Close
	if e.Executor, err = accel.New(dev, config); err == nil && split != nil {
		split.users.Add(1)
	}
	return e, err
}

// Close closes the executor, and the device unless other lanes have it.
func (e *Executor) Close() error {
	err := e.Executor.Close()
	if e.split != nil {
		err = errors.Join(err, e.split.leave())
	}
	return err
}

// OpenLanes opens GPU index as NewLanes does. The error matches cuda.ErrNotSupported on a host or in a build without a
// GPU.
func OpenLanes(index int, c Config, lanes int) ([]*Executor, error) {
	dev, err := cuda.Open(cuda.Config{Index: index})
	if err != nil {
		return nil, err
	}
	return NewLanes(dev, c, lanes)
}

// checkRoom returns an error if a model's largest batch does not fit into a lane.
func (e *Executor) checkRoom(m *executor.Model) error {
	if e.split == nil {
		return nil // its warm-up shows that
	}
	if static, dynamic := m.Footprint(); static+dynamic > e.split.bytes {
		return e.explainRoom(fmt.Errorf("%d KiB of parameters, and %d KiB while its largest batch runs: %w", static>>10, dynamic>>10, residency.ErrDoesNotFit))
	}
	return nil
}

// explainRoom adds a lane's memory to the error of a model that does not fit there.
func (e *Executor) explainRoom(err error) error {
	if e.split == nil || !errors.Is(err, residency.ErrDoesNotFit) {
		return err
	}
	return fmt.Errorf("%w: each of %d lanes has %d KiB for models: use fewer lanes, or smaller batches", err, e.split.lanes, e.split.bytes>>10)
}
