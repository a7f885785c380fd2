//go:build !linux

package backend

import "errors"

// pin binds the calling thread to a core.
func pin(int) error { return errors.New("pinning is not supported on this system") }
