//go:build !linux

package dispatch

import (
	"errors"
	"time"
)

const (
	busyMost = time.Minute
	rest     = 0
)

func makeRealtime() (restore func(), err error) { return nil, errors.ErrUnsupported }
