package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// change is one model that is loaded on, or taken from, one GPU.
type change struct {
	number uint64 // of the placement; 0: nobody asked
	gpu    *gpu
	model  uint32
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
		r.note(name, version, why)
	}
}

// unloadVersions is UnloadModel for whoever is placing.
func (b *Backend) unloadVersions(ctx context.Context, name, version string) error {
	var errs []error
	found := false
	for i, e := range b.modelEntries() {
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

// loadEverywhere loads a model on every GPU, one after another. GPUs that got it before one failed give it back.
func (b *Backend) loadEverywhere(ctx context.Context, model uint32, m *device.Model) error {
	var fresh []*gpu
	for _, g := range b.gpus {
		had := g.routeOf(model) != nil
		if err := b.loadOn(ctx, change{gpu: g, model: model}, m); err != nil {
			for _, other := range fresh {
				err = errors.Join(err, b.unloadFrom(ctx, change{gpu: other, model: model}))
			}
			return err
		}
		if !had {
			fresh = append(fresh, g)
		}
	}

	return nil
}

// loadOn loads a model on one GPU, or puts its weights in force there if it is loaded.
func (b *Backend) loadOn(ctx context.Context, c change, m *device.Model) error {
	old := c.gpu.routeOf(c.model)
	if old != nil && m.Source.SameSettings(old.model.Source) {
		began := time.Now()
		err := old.executor.Update(old.model, m.Source)
		if err == nil {
			b.tellLoaded(c, old, time.Since(began), 0)
			return nil
		}

		// New weights of other shapes need a load; any other error is the load's end.
		if !errors.Is(err, device.ErrShape) {
			return b.tellFailed(c, err)
		}
	}

	// The new one is loaded beside the old one, which serves until it is replaced.
	r, err := c.gpu.loadRoute(ctx, m)
	if err != nil {
		return b.tellFailed(c, err)
	}

	if err = b.measureRoute(ctx, c, r); err == nil && old != nil {
		err = b.replaceRoute(ctx, c, old, r)
	}

	if err != nil {
		return b.tellFailed(c, errors.Join(err, r.executor.Unload(m)))
	}

	c.gpu.setRoute(c.model, r)
	b.tellLoaded(c, r, r.loadTime, r.warmTime)
	return nil
}

// replaceRoute ends a route in favour of another one, which is loaded already. Where requests fit both none is refused
// meanwhile.
func (b *Backend) replaceRoute(ctx context.Context, c change, old, r *route) error {
	if old.model.Source.SameTensors(r.model.Source) && r.model.BatchMax >= old.model.BatchMax {
		// The new route takes what comes before the old one is drained.
		c.gpu.setRoute(c.model, r)
		if err := c.gpu.closeRoute(ctx, c.model, old); err != nil {
			c.gpu.setRoute(c.model, old)
			return err
		}
		return nil
	}

	// Requests for other shapes must not reach the new route: the scheduler stops sending first.
	b.tellState(c, wire.PlacementReport{State: wire.Unloading})
	if err := c.gpu.closeRoute(ctx, c.model, old); err != nil {
		b.tellLoaded(c, old, 0, 0)
		return err
	}

	return nil
}

// measureRoute sees that the model has a profile that holds here, and that it is fast enough for its SLO.
func (b *Backend) measureRoute(ctx context.Context, c change, r *route) error {
	m, e := r.model, b.modelEntries()[c.model]
	if p := b.profileOfLearnt(m); p != nil {
		m.Profile = p
	} else if b.config.Measure != nil && !(e.measured && e.model == m) && !(r.unwarmed != nil && m.Profile != nil) {
		s, err := c.gpu.borrowSlot(ctx)
		if err != nil {
			return err
		}

		// Measured between the batches of others, which go on.
		run := func(batch device.Batch) (time.Duration, error) { return c.gpu.timeAlone(ctx, r, batch) }

		p, err := b.config.Measure(ctx, run, m, s)
		c.gpu.freeSlots(s, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", c.gpu.name, err)
		}
		m.Profile = p
	}

	if m.Profile == nil || m.Profile.Max() < m.BatchMax {
		return fmt.Errorf("model %s version %s has no profile for batches up to %d", m.Name, m.Version, m.BatchMax)
	}

	if slo, one := m.Source.SLO, m.Profile.Exec(1); slo > 0 && slo < one { // the scheduler would refuse all
		return fmt.Errorf("model %s version %s: SLO %v is shorter than ℓ(1) = %v here: set the parameter slo_ms in its config.pbtxt higher", m.Name, m.Version, slo, one)
	}

	b.setEntry(c.model, entry{model: m, measured: true})
	b.tellLoadable(c.model)
	return nil
}

// unloadFrom takes a model from one GPU, and the memory that only it needed.
func (b *Backend) unloadFrom(ctx context.Context, c change) error {
	r := c.gpu.routeOf(c.model)
	if r == nil {
		b.tellState(c, wire.PlacementReport{State: wire.Unloaded})
		return nil
	}

	b.tellState(c, wire.PlacementReport{State: wire.Unloading})
	if err := c.gpu.closeRoute(ctx, c.model, r); err != nil {
		if c.gpu.routeOf(c.model) == r { // it is in force again
			b.tellLoaded(c, r, 0, 0)
		}
		return err
	}

	// Larger slots than needed cost memory only: the unload holds all the same.
	if err := c.gpu.shrinkSlots(ctx); err != nil {
		b.log.Warn("slots stay larger than the loaded models need", "gpu", c.gpu.name, "err", err)
	}

	b.log.Info("model unloaded", "model", r.model.Name, "version", r.model.Version, "gpu", c.gpu.name)
	b.tellState(c, wire.PlacementReport{State: wire.Unloaded})
	return nil
}

// Place takes the scheduler's placements. They are carried out one after another, while batches go on.
func (b events) Place(list []wire.Placement) {
	for _, p := range list {
		select {
		case b.placements <- p:
		default:
			b.sendReport(wire.PlacementReport{Number: p.Number, GPU: p.GPU, Model: p.Model, State: wire.LoadFailed,
				Text: fmt.Sprintf("%d placements wait already", placementsMax)})
		}
	}
}

// placementsMax is how many placements of the scheduler may wait.
const placementsMax = 256

// carryOut is the goroutine that carries placements out.
func (b *Backend) carryOut(ctx context.Context) {
	defer b.wait.Done()

	// Reports need the link, which is attached after New has returned.
	if b.awaitLink() == nil {
		return
	}

	for {
		select {
		case <-b.stop:
			return
		case p := <-b.placements:
			b.placeOne(ctx, p)
		}
	}
}

// placeOne carries one placement out; its report says how that ended.
func (b *Backend) placeOne(ctx context.Context, p wire.Placement) {
	all := b.modelEntries()

	// Numbers come from another process: they are checked before they are indices.
	if int(p.GPU) >= len(b.gpus) || int(p.Model) >= len(all) {
		b.sendReport(wire.PlacementReport{Number: p.Number, GPU: p.GPU, Model: p.Model, State: wire.LoadFailed,
			Text: fmt.Sprintf("gpu %d, model %d: this backend has %d and %d", p.GPU, p.Model, len(b.gpus), len(all))})
		return
	}

	if b.beginPlacing(ctx) != nil {
		return
	}
	defer b.endPlacing()

	c, m := change{number: p.Number, gpu: b.gpus[p.GPU], model: p.Model}, all[p.Model].model
	var err error
	switch r := c.gpu.routeOf(p.Model); {
	case p.Op == wire.Unload:
		err = b.unloadFrom(ctx, c)
	case p.Op == wire.Load && r != nil:
		// It is loaded already: the report is what the scheduler waits for.
		b.tellLoaded(c, r, 0, 0)
	default:
		// The repository is read anew: its files may have changed since the start.
		if m, err = b.rereadModel(ctx, m); err != nil {
			err = b.tellFailed(c, err)
			break
		}
		err = b.loadOn(ctx, c, m)
	}

	if err != nil {
		b.log.Error("placement failed", "op", p.Op, "gpu", c.gpu.name, "model", m.Name, "version", m.Version, "err", err)
	}
}

// rereadModel returns a model as the repository has it now, or as it was if there is none.
func (b *Backend) rereadModel(ctx context.Context, m *device.Model) (*device.Model, error) {
	if b.config.Find == nil {
		return m, nil
	}

	found, err := b.config.Find(ctx, m.Name, m.Version)
	if err != nil {
		return m, err
	}

	return found[0], nil
}
