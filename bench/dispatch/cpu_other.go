//go:build !linux

package dispatch

import "time"

var start = time.Now()

func cpuTime() time.Duration { return time.Since(start) }
