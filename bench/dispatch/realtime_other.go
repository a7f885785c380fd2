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

func realtime() (restore func(), err error) { return nil, errors.ErrUnsupported }
