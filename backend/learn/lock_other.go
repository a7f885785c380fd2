//go:build !unix

package learn

import (
	"os"
	"path/filepath"
)

// lockModel opens the lock's file; here nothing keeps another process from learning the same model.
func lockModel(dir string) (*os.File, error) {
	return os.OpenFile(filepath.Join(dir, ".learner.lock"), os.O_RDWR|os.O_CREATE, 0o644)
}
