package backend

import (
	"context"
	"errors"
	"time"

	"downbeat.dev/core/repo"
)

// pollSettle is how long a model's files must stay unchanged before it is loaded, so that no partial copy is loaded.
const pollSettle = time.Second

// pollRepository loads models that are added or changed in the repository, and unloads removed ones. seen are the
// stamps of the files that were read at start.
func (b *Backend) pollRepository(ctx context.Context, seen map[string]repo.Stamp) {
	defer b.wait.Done()
	r := b.config.repository
	t := time.NewTicker(r.every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}

		// A look without changes costs one scan; only a change is looked at twice.
		first, err := repo.Scan(r.dirs)
		if err == nil && !changedSince(first, seen) {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(r.every, pollSettle)):
		}

		again, errAgain := repo.Scan(r.dirs)
		if err = errors.Join(err, errAgain); err != nil { // a repository that is temporarily unreachable is not empty
			b.log.Warn("model repository not polled", "err", err)
			continue
		}
		b.followRepository(ctx, first, again, seen)
	}
}

func changedSince(now, seen map[string]repo.Stamp) bool {
	if len(now) != len(seen) {
		return true
	}
	for name, stamp := range now {
		if seen[name] != stamp {
			return true
		}
	}
	return false
}

// followRepository makes the loaded models match what two scans agree on, and records it in seen.
func (b *Backend) followRepository(ctx context.Context, first, again, seen map[string]repo.Stamp) {
	for name, stamp := range again {
		// Files that differ between the scans are still being written: the next poll finds them.
		if old, known := seen[name]; first[name] != stamp || known && old == stamp {
			continue
		}
		seen[name] = stamp // a failed load is tried again when a file changes
		if err := b.loadOverridden(ctx, name, nil); err != nil {
			b.log.Error("model of the repository not loaded", "model", name, "err", err)
		}
	}

	for name := range seen {
		// A model is gone if neither scan finds it: a rename removes it only for a moment.
		_, was := first[name]
		if _, is := again[name]; was || is {
			continue
		}
		delete(seen, name)
		if err := b.unloadForgotten(ctx, name); err != nil {
			b.log.Error("model that has left the repository not unloaded", "model", name, "err", err)
		}
	}
}
