//go:build !linux

package backend

import "errors"

var errPin = errors.New("cores: pinning is not supported on this system")

// pinThread binds the calling thread to a core.
func pinThread(int) error { return errPin }

// checkCore returns an error if this process may not run on a core.
func checkCore(int) error { return errPin }
