package backend

import "golang.org/x/sys/unix"

// pin binds the calling thread to a core.
func pin(core int) error {
	var set unix.CPUSet
	set.Set(core)
	return unix.SchedSetaffinity(0, &set)
}
