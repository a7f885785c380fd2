package repo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// WriteFile replaces a file atomically: it writes a temporary file, syncs it, renames it, and syncs the directory, so
// that the new content outlives a crash of the host. After an error the old file is unchanged and the temporary file
// is gone, except after one of the directory's sync, which says so.
func WriteFile(path string, content []byte) error {
	if err := replaceFile(path, content); err != nil {
		return err
	}

	if err := syncDirectory(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: written, but a crash of the host may undo it: %w", path, err)
	}
	return nil
}

// syncDirectory makes renames in a directory outlive a crash of the host, as far as its file system can.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()

	err = dir.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) { // of some remote file systems
		return nil
	}
	return err
}

// replaceFile is WriteFile without the directory's sync.
func replaceFile(path string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, explainError(err))
	}

	// Write to a temporary file and rename it, so that the file appears complete or not at all.
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w; the file was left as it was", path, explainError(err))
		}
	}()

	if _, err = f.Write(content); err != nil {
		return err
	}
	if err = f.Chmod(0o644); err != nil {
		return err
	}
	// Sync the content before the rename: a crash must not leave an empty file under the name.
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}

	return os.Rename(f.Name(), path)
}

// explainError adds advice about a full disk.
func explainError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("the disk is full, free some space: %w", err)
	}
	return err
}

// openRegular opens a regular file. A pipe or a device may have no end, and to open a pipe would wait for a writer.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return f, nil
}

// readLimited reads a regular file of at most limit bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	// Reading one byte more than the limit reveals a file that is too long.
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, limit)
	}
	return text, nil
}
