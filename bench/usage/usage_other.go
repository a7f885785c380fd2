//go:build !linux

package usage

import "time"

var begun = time.Now()

// ProcessorTime returns this process's processor time since its start; on systems that do not report it, the elapsed
// time.
func ProcessorTime() time.Duration { return time.Since(begun) }

// ThreadTime returns the calling thread's processor time since its start, for goroutines with runtime.LockOSThread;
// on systems that do not report it, the elapsed time.
func ThreadTime() time.Duration { return time.Since(begun) }
