//go:build !cgo

package ort

import (
	"errors"

	"downbeat.dev/backend/device"
)

var errNoCgo = errors.New("this binary was built without cgo")

// Runtime is not there in a binary built without cgo.
type Runtime struct{}

// Executor is not there in a binary built without cgo.
type Executor struct{}

// Open always fails with ErrMissing.
func Open(library string) (*Runtime, error) {
	if library == "" {
		library = Library()
	}
	return nil, missing(library, errNoCgo)
}

// Version returns "none".
func (r *Runtime) Version() string { return "none" }

// Executor returns an executor that refuses everything.
func (r *Runtime) Executor() *Executor { return &Executor{} }

// Load refuses.
func (e *Executor) Load(*device.Model, []*device.Slot) error { return missing(libraryName, errNoCgo) }

// Execute refuses.
func (e *Executor) Execute(device.Batch) error { return missing(libraryName, errNoCgo) }

// Close does nothing.
func (e *Executor) Close() error { return nil }
