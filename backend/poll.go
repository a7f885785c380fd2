package backend

import (
	"context"
	"errors"
	"time"

	"downbeat.dev/core/repo"
)

// pollSettle is how long the files of a model must stay as they are before it is loaded: one that is being copied is
// left until it is whole.
const pollSettle = time.Second

// pollRepository loads the models that come or change in the repository, and unloads those that go. seen are the stamps
// of the files that were read at start.
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

		// A look that finds nothing new costs one scan; only a change is looked at twice.
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
		if err = errors.Join(err, errAgain); err != nil { // a repository that is away for a moment is not an empty one
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

// followRepository brings what is loaded in line with what two looks have found alike, and notes it in seen.
func (b *Backend) followRepository(ctx context.Context, first, again, seen map[string]repo.Stamp) {
	for name, stamp := range again {
		// Files that differ between the looks are still being written: the next poll finds them.
		if old, known := seen[name]; first[name] != stamp || known && old == stamp {
			continue
		}
		seen[name] = stamp // a load that fails is tried again when a file changes
		if err := b.loadOverridden(ctx, name, nil); err != nil {
			b.log.Error("model of the repository not loaded", "model", name, "err", err)
		}
	}

	for name := range seen {
		// A model is gone when neither look finds it: a rename takes it away for a moment.
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
