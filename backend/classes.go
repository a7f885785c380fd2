package backend

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
)

// Models with variable dimensions or optional inputs are served in shape classes. Each class is laid out, bound and
// measured like a model of its own (docs/decisions/0225). A frontend asks for a class at its first request.

// standardSizes are tried for the open dimensions of a model without samples: the model is loaded with the first size
// that it runs on. Networks for pictures reduce the size, so small ones may fail.
var standardSizes = []int64{1, 8, 16, 32, 64, 128, 224, 256, 512, 1024}

// layoutAll prepares a model: as it is or, with shape classes, its standard class, which represents the model, and
// the classes of its samples.
func (o *Options) layoutAll(ctx context.Context, m *repo.Model, library *ort.Runtime) ([]*device.Model, error) {
	if !m.HasClasses() {
		closed, err := o.closeOutputs(m, library)
		if err != nil {
			return nil, err
		}
		d, err := o.layoutModel(ctx, closed, library)
		return []*device.Model{d}, err
	}

	classes := m.SampleClasses()
	if most := m.Config.ShapesMax; len(classes) > most {
		return nil, fmt.Errorf("model_warmup has samples of %d shape classes: want at most %d (parameter shapes_max)", len(classes), most)
	}

	// The standard class comes first: it validates the file before anyone asks for another class.
	var all []*device.Model
	standard, err := o.standardClass(m, classes, library)
	if err != nil {
		return nil, err
	}
	d, err := o.layoutModel(ctx, m.Standing(standard), library)
	if err != nil {
		return nil, err
	}
	all = append(all, d)

	for _, class := range classes {
		d, err := o.layoutClass(ctx, m, class, library)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// standardClass returns the class of the first sample, or of the first standard size that the model runs on.
func (o *Options) standardClass(m *repo.Model, classes []string, library *ort.Runtime) (*repo.Model, error) {
	if len(classes) > 0 {
		return o.makeClass(m, classes[0], library)
	}

	var first error
	for _, size := range standardSizes {
		class, err := m.EvenClass(size)
		if err != nil {
			return nil, err
		}
		c, err := o.makeClass(m, class, library)
		if err == nil {
			return c, nil
		}

		// The first error is reported: later ones concern less usual sizes.
		if first == nil {
			first = err
		}
	}
	return nil, fmt.Errorf("dims of -1: the model runs on none of the sizes %v; want a model_warmup with dims that it takes: %w", standardSizes, first)
}

// layoutClass prepares one shape class of a model.
func (o *Options) layoutClass(ctx context.Context, m *repo.Model, class string, library *ort.Runtime) (*device.Model, error) {
	c, err := o.makeClass(m, class, library)
	if err != nil {
		return nil, err
	}
	return o.layoutModel(ctx, c, library)
}

// makeClass makes a shape class of a model; a run determines its outputs' shapes.
func (o *Options) makeClass(m *repo.Model, class string, library *ort.Runtime) (*repo.Model, error) {
	c, err := m.Class(class, nil)
	if err != nil {
		return nil, err
	}
	outputs, err := o.outputsOf(m, c, class, library)
	if err != nil {
		return nil, fmt.Errorf("shape class %q: %w", class, err)
	}
	return m.Class(class, outputs)
}

// outputsOf returns m's outputs for the inputs of c.
func (o *Options) outputsOf(m, c *repo.Model, class string, library *ort.Runtime) ([]model.Tensor, error) {
	// A client may send any shape: check it before allocating memory.
	for k := range c.Inputs {
		if err := c.Inputs[k].Check(); err != nil {
			return nil, fmt.Errorf("input %w", err)
		}
	}

	switch {
	case m.Platform == repo.PlatformEmulated:
		return m.EmulatedOutputs(class)
	case library == nil:
		return nil, fmt.Errorf("the outputs' shapes: %w", ort.ErrMissing)
	}
	return library.ProbeOutputs(c)
}

// closeOutputs determines the outputs' shapes of a model with fixed inputs if its graph leaves them open.
func (o *Options) closeOutputs(m *repo.Model, library *ort.Runtime) (*repo.Model, error) {
	if !m.OpenOutputs() {
		return m, nil
	}
	outputs, err := o.outputsOf(m, m, "", library)
	if err != nil {
		return nil, err
	}
	return m.WithOutputs(outputs)
}

// addClass loads one more shape class of a loaded model, for a command.
func (b *Backend) addClass(ctx context.Context, c wire.ModelCommand) error {
	if b.config.repository == nil {
		return refusedCommand("this backend has no repository")
	}
	if err := b.beginPlacing(ctx); err != nil {
		return err
	}
	defer b.endPlacing()

	// A backend without the model has nothing to do, which is not a failure if others have it.
	whole := b.loadedVersion(c.Model, c.Version)
	if whole == nil {
		return fmt.Errorf("model %q version %q is not loaded: %w", c.Model, c.Version, repo.ErrNotFound)
	}
	if !whole.Source.Standard {
		return refusedCommand("model %q has inputs of fixed dims that are always there", c.Model)
	}

	// Classes take memory and any client can request one, so the operator limits their number.
	version := model.ClassVersion(c.Version, c.Shape)
	most := whole.Source.Config.ShapesMax
	known, loaded := b.countClasses(c.Model, c.Version)
	switch {
	case b.loadedVersion(c.Model, version) != nil:
		return nil
	case loaded >= most:
		return refusedCommand("model %q has %d shape classes, the most that it may have (parameter shapes_max of its configuration): %s would be one more", c.Model, most, c.Shape)
	case known >= triedClasses*most && !b.knowsVersion(c.Model, version):
		return refusedCommand("model %q: %d shape classes have been tried, the most: %s would be one more", c.Model, known, c.Shape)
	}

	// A failed class is not a failure of the model: only the client that asked is told.
	err := b.loadNewest(ctx, c.Model, version)
	b.config.repository.forgetVersion(c.Model, version)
	return err
}

// loadedVersion returns a version of a model that is loaded on every GPU, or nil.
func (b *Backend) loadedVersion(name, version string) *device.Model {
	all := b.modelEntries()
	if number, known := findNumber(all, name, version); known && b.loadedEverywhere(number) {
		return all[number].model
	}
	return nil
}

// triedClasses limits the classes that may be tried to this multiple of those that may be loaded, because some are
// too slow or too large. Each takes a model number of the backend for good.
const triedClasses = 4

// countClasses returns how many shape classes of a version have been tried, and how many of them are loaded
// somewhere.
func (b *Backend) countClasses(name, version string) (known, loaded int) {
	for i, e := range b.modelEntries() {
		whole, class := model.SplitVersion(e.model.Version)
		if e.model.Name != name || whole != version || class == "" {
			continue
		}
		known++
		if b.loadedSomewhere(uint32(i)) {
			loaded++
		}
	}
	return known, loaded
}

// loadedSomewhere reports whether some GPU takes batches of a model.
func (b *Backend) loadedSomewhere(number uint32) bool {
	return slices.ContainsFunc(b.gpus, func(g *gpu) bool { return g.routeOf(number) != nil })
}

// staysLoaded reports whether a version that a load did not name stays loaded: it is a class of a named version, made
// from the same files.
func (e *entry) staysLoaded(named []*device.Model) bool {
	whole, class := model.SplitVersion(e.model.Version)
	return slices.ContainsFunc(named, func(n *device.Model) bool {
		return n.Version == e.model.Version || class != "" && n.Version == whole && n.Source.Standard && n.Source.Stamp == e.stamp
	})
}

// carryClasses loads the shape classes of a model's versions for the versions that a load has put in their place: the
// same version with new files, or the newest one if the version is removed. A class that cannot be loaded there ends
// with its version.
func (b *Backend) carryClasses(ctx context.Context, named []*device.Model) {
	// The policy's versions are ordered from the oldest.
	i := len(named) - 1
	for i >= 0 && !named[i].Source.Standard {
		i--
	}
	if i < 0 {
		return
	}

	newest := named[i]
	for number, e := range b.modelEntries() {
		whole, class := model.SplitVersion(e.model.Version)
		if e.model.Name != newest.Name || class == "" || e.staysLoaded(named) || !b.loadedSomewhere(uint32(number)) {
			continue
		}
		into := newest.Version
		if slices.ContainsFunc(named, func(n *device.Model) bool { return n.Version == whole && n.Source.Standard }) {
			into = whole
		}
		if err := b.carryClass(ctx, newest.Name, into, class); err != nil {
			b.log.Warn("shape class not carried over", "model", newest.Name, "version", into, "class", class, "err", err)
		}
	}
}

// carryClass loads a shape class of a model's version, up to the version's limit.
func (b *Backend) carryClass(ctx context.Context, name, version, class string) error {
	whole, into := b.loadedVersion(name, version), model.ClassVersion(version, class)
	if _, loaded := b.countClasses(name, version); whole != nil && loaded >= whole.Source.Config.ShapesMax && b.loadedVersion(name, into) == nil {
		return fmt.Errorf("the version has %d shape classes, the most that it may have (parameter shapes_max)", loaded)
	}
	err := b.loadNewest(ctx, name, into)
	b.config.repository.forgetVersion(name, into)
	return err
}

// errNotClass is the error of an order to load a class of a model without classes.
var errNotClass = errors.New("the model has no shape classes")
