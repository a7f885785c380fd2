package learn

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// lockModel makes this process the only learner of a model of a repository. It returns nil without an error if
// another process is.
func lockModel(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".learner.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}

	// The kernel releases the lock when the process ends, for whatever reason.
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, err
	}
	return f, nil
}
