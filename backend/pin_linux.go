package backend

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// pinThread binds the calling thread to a core.
func pinThread(core int) error {
	var set unix.CPUSet
	set.Set(core)
	return unix.SchedSetaffinity(0, &set)
}

// checkCore returns an error if this process may not run on a core.
func checkCore(core int) error {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return fmt.Errorf("cores: %d: %w", core, err)
	}
	if core < 0 || !set.IsSet(core) {
		return fmt.Errorf("cores: %d: this process may run on %d cores, not on that one (see taskset -p)", core, set.Count())
	}
	return nil
}
