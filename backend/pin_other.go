//go:build !linux

package backend

import "errors"

var errPin = errors.New("cores: pinning is not supported on this system")

// pinThread binds the calling thread to a core.
func pinThread(int) error { return errPin }

// checkCore says whether this process may run on a core.
func checkCore(int) error { return errPin }
