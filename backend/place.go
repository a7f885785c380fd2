package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
)

// What is loaded where changes while the backend serves: by its own methods, and by the scheduler's placements. One
// change is made at a time. The scheduler is told of each as it happens; a load that fails leaves what was there.

// entry is a model that the backend has, or has had, in some GPU's memory or can load.
type entry struct {
	model    *device.Model
	measured bool       // its profile was measured or checked here
	stamp    repo.Stamp // of the files that are loaded; 0: not known
}

// errClosing ends placements when the backend is closed.
var errClosing = errors.New("the backend is being closed")

// beginPlacing waits until no other change is being made.
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
// means those that the repository's policy serves. A version that is loaded gets the weights that its file has now,
// in place where the shapes are the same. After an error the GPUs have what they had, unless it says otherwise.
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

// LoadLearnt is LoadModel for weights that were learnt: the version takes as long as the one that is loaded, whose profile
// it gets instead of being measured between batches.
func (b *Backend) LoadLearnt(ctx context.Context, name, version string) error {
	if b.config.Find == nil {
		return fmt.Errorf("load model %s: this backend has no repository", name)
	}

	if err := b.beginPlacing(ctx); err != nil {
		return fmt.Errorf("load model %s: %w", name, err)
	}
	defer b.endPlacing()
	b.learnt = name
	defer func() { b.learnt = "" }()
	return b.loadNewest(ctx, name, version)
}

// profileOfLearnt returns the profile that a learnt version shares with the version before; nil: it is to be measured.
func (b *Backend) profileOfLearnt(m *device.Model) *profile.Profile {
	if b.learnt != m.Name {
		return nil
	}

	for i, e := range b.modelEntries() {
		same := e.model.Name == m.Name && e.model != m && e.measured && e.model.Profile != nil && e.model.BatchMax == m.BatchMax
		if same && e.model.Source.SameTensors(m.Source) && b.loadedEverywhere(uint32(i)) {
			return e.model.Profile
		}
	}

	return nil
}

// loadNewest is LoadModel for whoever is placing.
func (b *Backend) loadNewest(ctx context.Context, name, version string) error {
	models, err := b.config.Find(ctx, name, version)
	if err != nil {
		if !errors.Is(err, repo.ErrNotFound) {
			b.noteFailure(name, version, err)
		}
		return fmt.Errorf("failed to load %q: %w", name, err)
	}

	// New versions are loaded before old ones go: one that fails leaves what serves.
	var errs []error
	for _, m := range models {
		errs = append(errs, b.loadVersion(ctx, m))
	}

	if err := errors.Join(errs...); err != nil || version != "" {
		return err
	}

	// Requests of the shape classes that there are go on while files or versions are replaced.
	b.carryClasses(ctx, models)

	// Versions that the policy serves no more go last: some version is served all the time.
	for i, e := range b.modelEntries() {
		other := e.model.Name == name && !e.staysLoaded(models)
		for _, g := range b.gpus {
			if other && g.routeOf(uint32(i)) != nil {
				errs = append(errs, b.unloadFrom(ctx, change{gpu: g, model: uint32(i)}))
			}
		}
	}

	return errors.Join(errs...)
}

// loadVersion loads a model on every GPU, unless they have it as its files are now.
func (b *Backend) loadVersion(ctx context.Context, m *device.Model) error {
	all := b.modelEntries()
	known := slices.ContainsFunc(all, func(e entry) bool { return e.model.Name == m.Name && e.model.Version == m.Version })
	if !known && len(all) >= wire.ModelsMax {
		return fmt.Errorf("failed to load %q version %s: this backend has known %d models and versions since its start, the most: restart it", m.Name, m.Version, len(all))
	}

	number := b.numberOf(m)
	if !known {
		b.tellLoadable(number) // numbers are told in turn, also of one that then cannot be loaded
	}

	if e := b.modelEntries()[number]; m.Source.Stamp != 0 && e.stamp == m.Source.Stamp && b.loadedEverywhere(number) {
		return nil
	}

	if err := b.loadEverywhere(ctx, number, m); err != nil {
		b.noteFailure(m.Name, m.Version, err)
		return fmt.Errorf("failed to load %q version %s: %w", m.Name, m.Version, err)
	}

	// The stamp comes last: after a load that failed the same files are tried again.
	e := b.modelEntries()[number]
	e.stamp = m.Source.Stamp
	b.setEntry(number, e)
	return nil
}

// UnloadModel takes a version of a model, or all if it is empty, from every GPU. What was accepted is served first; if
// ctx ends before, the model stays.
func (b *Backend) UnloadModel(ctx context.Context, name, version string) error {
	if err := b.beginPlacing(ctx); err != nil {
		return fmt.Errorf("unload model %s: %w", name, err)
	}
	defer b.endPlacing()
	return b.unloadVersions(ctx, name, version)
}

// noteFailure keeps why a load failed, for the repository's index.
func (b *Backend) noteFailure(name, version string, why error) {
	if r := b.config.repository; r != nil {
		r.noteFailure(name, version, why)
	}
}

// unloadVersions is UnloadModel for whoever is placing.
func (b *Backend) unloadVersions(ctx context.Context, name, version string) error {
	var errs []error
	found := false
	for i, e := range b.modelEntries() {
		// A version takes its shape classes with it.
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

// numberOf returns the number of a model by name and version, a new one for one that is new.
func (b *Backend) numberOf(m *device.Model) uint32 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.models {
		if e := &b.models[i]; e.model.Name == m.Name && e.model.Version == m.Version {
			return uint32(i)
		}
	}

	b.models = append(b.models, entry{model: m})
	return uint32(len(b.models) - 1)
}

// setEntry says what a number stands for from now on.
func (b *Backend) setEntry(model uint32, e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.models = append([]entry(nil), b.models...) // who holds entries reads the old ones
	b.models[model] = e
}
