//go:build !cgo

package ort

import (
	"errors"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

var errNoCgo = errors.New("this binary was built without cgo")

// Runtime is a stub in a binary built without cgo.
type Runtime struct{}

// Executor is a stub in a binary built without cgo.
type Executor struct{}

// Open always fails with ErrMissing.
func Open(library string) (*Runtime, error) {
	if library == "" {
		library = Library()
	}
	return nil, missingLibrary(library, errNoCgo)
}

// Version returns "none".
func (r *Runtime) Version() string { return "none" }

// Executor returns an executor that refuses everything.
func (r *Runtime) Executor() *Executor { return &Executor{} }

// ExecutorOf is Executor.
func (r *Runtime) ExecutorOf(int) *Executor { return &Executor{} }

// ProbeOutputs always fails.
func (r *Runtime) ProbeOutputs(*repo.Model) ([]model.Tensor, error) {
	return nil, missingLibrary(libraryName, errNoCgo)
}

// Capabilities returns the capabilities of a processor.
func (e *Executor) Capabilities() device.Capabilities { return device.Capabilities{OnHost: true} }

// AddSlot does nothing.
func (e *Executor) AddSlot(*device.Slot) error { return nil }

// DropSlot does nothing.
func (e *Executor) DropSlot(*device.Slot) error { return nil }

// Load always fails.
func (e *Executor) Load(*device.Model) (device.Footprint, error) {
	return device.Footprint{}, missingLibrary(libraryName, errNoCgo)
}

// Prepare always fails.
func (e *Executor) Prepare(*device.Model, *repo.Model) (device.Update, error) {
	return device.Update{}, missingLibrary(libraryName, errNoCgo)
}

// Unload always fails.
func (e *Executor) Unload(*device.Model) error { return missingLibrary(libraryName, errNoCgo) }

// Submit always fails.
func (e *Executor) Submit(device.Batch) error { return missingLibrary(libraryName, errNoCgo) }

// Wait always fails.
func (e *Executor) Wait(device.Batch) error { return missingLibrary(libraryName, errNoCgo) }

// Memory returns nothing.
func (e *Executor) Memory() device.Memory { return device.Memory{} }

// Close does nothing.
func (e *Executor) Close() error { return nil }
