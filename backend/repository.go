package backend

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
	"downbeat.dev/core/wire"
)

// Modes of Options.Control: how the loaded models are selected, as in Triton.
const (
	ControlNone     = "none"     // all at start, without changes
	ControlExplicit = "explicit" // Options.Load at start, then clients' commands
	ControlPoll     = "poll"     // all, following changes in the repository
)

// pollEvery is the default interval of polling, as in Triton.
const pollEvery = 15 * time.Second

// repository finds a backend's models, in the directories of its options or in the files of a command.
type repository struct {
	dirs    []string
	control string
	every   time.Duration // between two polls
	options *Options
	library *ort.Runtime // nil: there is none

	commanded *commanded // placing guards it

	mu        sync.Mutex
	overrides map[string]*override  // guarded by mu
	reasons   map[versionKey]string // why the last load of a model, or of a version of it, failed; guarded by mu
}

// versionKey names a version of a model; without a version, the model as a whole.
type versionKey struct{ name, version string }

// replace puts an override in force, nil for none, and returns the previous one.
func (r *repository) replace(name string, o *override) (before *override) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before = r.overrides[name]
	if o == nil {
		delete(r.overrides, name)
	} else {
		r.overrides[name] = o
	}
	return before
}

// noteFailure records why a load failed.
func (r *repository) noteFailure(name, version string, why error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	// A client may load any names with files of its own: the index has room for so many, and no more are kept.
	k := versionKey{name, version}
	if _, known := r.reasons[k]; known || len(r.reasons) < wire.ModelsMax {
		r.reasons[k] = why.Error()
	}
}

// forget drops the reasons of a model's failed loads.
func (r *repository) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.reasons, func(k versionKey, _ string) bool { return k.name == name })
}

// forgetVersion drops the reason of a version's failed load.
func (r *repository) forgetVersion(name, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reasons, versionKey{name, version})
}

// readModels reads a model and lays it out. An empty version means the versions that its policy selects.
func (r *repository) readModels(ctx context.Context, name, version string) ([]*device.Model, error) {
	r.mu.Lock()
	o := r.overrides[name]
	r.mu.Unlock()

	dirs, how := r.dirs, repo.Options{Graph: onnx.Signature}
	if r.options.Strict {
		how.Graph = nil
	}

	// An override's configuration takes precedence; its files replace the whole repository.
	if o != nil {
		how.Config = o.config
		if o.files != "" {
			dirs = []string{o.files}
		}
	}

	models, err := repo.OpenModel(dirs, name, how)
	if err != nil {
		return nil, err
	}

	// The version of a shape class names the files' version and the class.
	whole, class := model.SplitVersion(version)
	var found []*device.Model
	for i := range models {
		m := &models[i]
		if version != "" && m.Version != whole {
			continue
		}

		// Versions share the configuration: one warning is enough.
		if i == 0 {
			r.options.warnOf(m)
		}
		all, err := r.layoutModel(ctx, m, class)
		if err != nil {
			return nil, err
		}
		found = append(found, all...)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("model %s has no version %q: %w", name, version, repo.ErrNotFound)
	}
	return found, nil
}

// layoutModel prepares a model with its initial classes, or with the one class that is named.
func (r *repository) layoutModel(ctx context.Context, m *repo.Model, class string) ([]*device.Model, error) {
	if class == "" {
		return r.options.layoutAll(ctx, m, r.library)
	}
	if !m.HasClasses() {
		return nil, fmt.Errorf("model %s version %s: class %q: %w", m.Name, m.Version, class, errNotClass)
	}
	d, err := r.options.layoutClass(ctx, m, class, r.library)
	return []*device.Model{d}, err
}

// names returns the names of all models, including the overridden ones.
func (r *repository) names() []string {
	// If the repository cannot be read now, report the overrides.
	all, err := repo.Names(r.dirs)
	if err != nil {
		r.options.Logger.Error("model repository not read", "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range maps.Keys(r.overrides) {
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// unserved lists the models of the repository that no GPU takes batches of, each with its reason. known are the
// models that have been loaded, or should have been.
func (r *repository) unserved(known []entry, loaded func(number uint32) bool) (all []model.Info) {
	r.mu.Lock()
	reasons := maps.Clone(r.reasons)
	r.mu.Unlock()

	// A model whose load did not fail has been unloaded.
	reason := func(k versionKey) string {
		if why := reasons[k]; why != "" {
			return cutReason(why)
		}
		return model.Unloaded
	}

	// listed are the models with a version in the list, served those with a loaded version.
	listed, served := map[string]bool{}, map[string]bool{}
	names := r.names()
	for i, e := range known {
		k := versionKey{e.model.Name, e.model.Version}
		if _, class := model.SplitVersion(k.version); class != "" {
			continue // clients know its version
		}
		if loaded(uint32(i)) {
			served[k.name] = true
		} else {
			listed[k.name] = true
			all = append(all, model.Info{Name: k.name, Version: k.version, Reason: reason(k)})
		}
	}

	// A model that failed as a whole may have no version to list, and may have left the repository.
	for k := range reasons {
		if k.version == "" {
			names = append(names, k.name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		// A model with listed versions has a line of its own only if it has a reason of its own.
		if !served[name] && (!listed[name] || reasons[versionKey{name, ""}] != "") {
			all = append(all, model.Info{Name: name, Reason: reason(versionKey{name, ""})})
		}
	}
	return all
}
