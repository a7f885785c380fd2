//go:build !linux

package usage

import "time"

var begun = time.Now()

// ProcessorTime returns what this process has taken of the processors since it began; where the system does not say, the time that has passed.
func ProcessorTime() time.Duration { return time.Since(begun) }

// ThreadTime returns what the calling thread has taken of the processors since it began, for goroutines that runtime.LockOSThread keeps on
// theirs; where the system does not say, the time that has passed.
func ThreadTime() time.Duration { return time.Since(begun) }
