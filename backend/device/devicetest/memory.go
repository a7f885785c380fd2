package devicetest

import "downbeat.dev/cuda"

// OutOfMemoryAt is a fault of an emulated device: of its calls that may allocate the nth, from 0 on, finds no memory. That call's
// name is written to hit.
func OutOfMemoryAt(n int, hit *string) func(cuda.Site) cuda.Fault {
	calls := 0
	return func(s cuda.Site) cuda.Fault {
		switch s.Op {
		case "copy in", "copy out", "copy", "launch", "fill":
			return cuda.Fault{} // commands do not allocate
		}
		if calls++; calls != n+1 {
			return cuda.Fault{}
		}
		*hit = s.Op
		return cuda.Fault{Code: cuda.CodeOutOfMemory}
	}
}
