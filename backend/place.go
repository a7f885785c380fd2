package backend

import (
	"context"
	"errors"
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
)

// Loaded models change while the backend serves, by its own methods and by the scheduler's placements. One change is
// made at a time, and the scheduler is told of each as it happens. A failed load leaves the previous state.

// entry is a model that the backend has or had in some GPU's memory, or can load.
type entry struct {
	model    *device.Model
	measured bool       // its profile was measured or checked here
	stamp    repo.Stamp // of the loaded files; 0: unknown
}

// errClosing ends placements when the backend closes.
var errClosing = errors.New("the backend is being closed")

// beginPlacing waits until no other change is in progress.
func (b *Backend) beginPlacing(ctx context.Context) error {
	select {
	case b.placing <- struct{}{}:
		return nil
	case <-b.stop:
		return errClosing
	case <-ctx.Done():
		return fmt.Errorf("another model is being loaded or unloaded: %w", ctx.Err())
	}
}

func (b *Backend) endPlacing() { <-b.placing }

// LoadModel reads a model from the repository and loads it on every GPU, while others are served. An empty version
// means the versions that the repository's policy selects. A loaded version gets the present weights of its file, in
// place if the shapes are the same. After an error the GPUs keep what they had, unless the error says otherwise.
func (b *Backend) LoadModel(ctx context.Context, name, version string) error {
	if b.config.Find == nil {
		return fmt.Errorf("load model %s: this backend has no repository", name)
	}

	if err := b.beginPlacing(ctx); err != nil {
		return fmt.Errorf("load model %s: %w", name, err)
	}
	defer b.endPlacing()
	return b.loadNewest(ctx, name, version)
}

// loadNewest is LoadModel for a caller that has begun placing.
func (b *Backend) loadNewest(ctx context.Context, name, version string) error {
	models, err := b.config.Find(ctx, name, version)
	if err != nil {
		if !errors.Is(err, repo.ErrNotFound) {
			b.noteFailure(name, version, err)
		}
		return fmt.Errorf("failed to load %q: %w", name, err)
	}
	defer b.handFile(models)()

	// New versions are loaded before old ones are unloaded, so a failure leaves a serving version.
	var errs []error
	for _, m := range models {
		errs = append(errs, b.loadVersion(ctx, m))
	}

	if err := errors.Join(errs...); err != nil || version != "" {
		return err
	}

	// Requests of existing shape classes continue while files or versions are replaced.
	b.carryClasses(ctx, models)

	// Versions that the policy no longer selects go last, so that some version always serves.
	for i, e := range b.modelEntries() {
		other := e.model.Name == name && !e.staysLoaded(models)
		for _, g := range b.gpus {
			if other && g.routeOf(uint32(i)) != nil {
				errs = append(errs, b.unloadFrom(ctx, change{gpu: g, model: uint32(i)}))
			}
		}
	}

	b.retireVersions(name, models)
	return errors.Join(errs...)
}

// loadVersion loads a model on every GPU, unless they have loaded its present files.
func (b *Backend) loadVersion(ctx context.Context, m *device.Model) error {
	known := b.knowsVersion(m.Name, m.Version)
	if !known && !b.hasNumber() {
		return fmt.Errorf("failed to load %q version %s: this backend knows %d models and versions, the most; the number of one that has left the repository is free after %v",
			m.Name, m.Version, wire.ModelsMax, b.numberRest)
	}

	number := b.numberOf(m)
	if !known {
		b.tellLoadable(number) // the scheduler expects numbers in order, even of a model that then fails to load
	}

	if e := b.modelEntries()[number]; m.Source.Stamp != 0 && e.stamp == m.Source.Stamp && b.loadedEverywhere(number) {
		return nil
	}

	if err := b.loadEverywhere(ctx, number, m); err != nil {
		b.noteFailure(m.Name, m.Version, err)
		return fmt.Errorf("failed to load %q version %s: %w", m.Name, m.Version, err)
	}

	// The stamp comes last: after a failed load the same files are tried again.
	e := b.modelEntries()[number]
	e.stamp = m.Source.Stamp
	b.setEntry(number, e)
	return nil
}

// UnloadModel unloads a version of a model, or all if it is empty, from every GPU. Accepted requests are served
// first; if ctx ends before that, the model stays.
func (b *Backend) UnloadModel(ctx context.Context, name, version string) error {
	if err := b.beginPlacing(ctx); err != nil {
		return fmt.Errorf("unload model %s: %w", name, err)
	}
	defer b.endPlacing()
	return b.unloadVersions(ctx, name, version)
}

// noteFailure records why a load failed, for the repository's index.
func (b *Backend) noteFailure(name, version string, why error) {
	if r := b.config.repository; r != nil {
		r.noteFailure(name, version, why)
	}
}

// unloadVersions is UnloadModel for a caller that has begun placing.
func (b *Backend) unloadVersions(ctx context.Context, name, version string) error {
	var errs []error
	found := false
	for i, e := range b.modelEntries() {
		// A version's shape classes are unloaded with it.
		whole, _ := model.SplitVersion(e.model.Version)
		if e.model.Name != name || version != "" && e.model.Version != version && whole != version {
			continue
		}
		for _, g := range b.gpus {
			if g.routeOf(uint32(i)) != nil {
				found = true
				errs = append(errs, b.unloadFrom(ctx, change{gpu: g, model: uint32(i)}))
			}
		}
	}

	if !found {
		return fmt.Errorf("unload model %s version %q: %w", name, version, errNotLoaded)
	}

	return errors.Join(errs...)
}

// modelEntries returns the models that the backend knows, by number.
func (b *Backend) modelEntries() []entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.models[:len(b.models):len(b.models)]
}

// setEntry replaces the entry of a number.
func (b *Backend) setEntry(model uint32, e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.models = append([]entry(nil), b.models...) // readers keep the old list
	b.models[model] = e
}
