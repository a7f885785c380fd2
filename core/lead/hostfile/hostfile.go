//go:build unix

// Package hostfile keeps the leader's record in a file, for schedulers that share a host: one can be upgraded or
// restarted without a gap and without etcd. The file must not be on a network file system.
package hostfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"syscall"

	"downbeat.dev/core/lead"
)

// Store is a lead.Store. A lock file beside the record serialises changes.
type Store struct{ path string }

// Open returns the store of a path. The first leader creates the file; its directory must exist.
func Open(path string) (*Store, error) {
	if info, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("election: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("election: %s is no folder", filepath.Dir(path))
	}
	return &Store{path}, nil
}

// Get implements lead.Store.
func (s *Store) Get(context.Context) (lead.Record, lead.Revision, error) {
	var r lead.Record

	text, err := os.ReadFile(s.path)
	if errors.Is(err, os.ErrNotExist) {
		return r, "", nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}

	if err != nil {
		return r, "", fmt.Errorf("election %s: %w", s.path, err)
	}
	return r, digestOf(text), nil
}

// digestOf returns a digest as the revision: records differ in epoch and beat.
func digestOf(text []byte) lead.Revision {
	h := fnv.New64a()
	h.Write(text)
	return lead.Revision(fmt.Sprintf("%x", h.Sum64()))
}

// Swap implements lead.Store. It replaces the record as a whole.
func (s *Store) Swap(ctx context.Context, old lead.Revision, to lead.Record) (lead.Revision, error) {
	lock, err := os.OpenFile(s.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("election: %w", err)
	}
	defer lock.Close() // closing also unlocks

	// The lock orders the schedulers of this host; the kernel releases it if the process dies.
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("election %s: lock: %w", s.path, err)
	}

	if _, now, err := s.Get(ctx); err != nil {
		return "", err
	} else if now != old {
		return "", lead.ErrChanged
	}

	text, err := json.Marshal(to)
	if err != nil {
		return "", err
	}

	// A rename replaces the file at once, so a reader sees the old record or the new one.
	if err := os.WriteFile(s.path+".new", text, 0o600); err != nil {
		return "", fmt.Errorf("election: %w", err)
	}
	if err := os.Rename(s.path+".new", s.path); err != nil {
		return "", fmt.Errorf("election: %w", err)
	}
	return digestOf(text), nil
}

// Close implements lead.Store.
func (s *Store) Close() error { return nil }
