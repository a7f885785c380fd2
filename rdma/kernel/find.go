package kernel

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes returns the ids of processes with a command name, except this one.
func Processes(name string) []int {
	all, _ := filepath.Glob("/proc/[0-9]*/comm")
	var ids []int
	for _, path := range all {
		// A process may end between the listing and the read.
		b, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(b)) != name {
			continue
		}

		if id, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && id != os.Getpid() {
			ids = append(ids, id)
		}
	}
	return ids
}
