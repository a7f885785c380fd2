package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"downbeat.dev/backend/onnx"
	"downbeat.dev/backend/ort"
	"downbeat.dev/core/model"
	"downbeat.dev/core/repo"
)

// assembleConfig reads the repository and makes the executors.
func (o *Options) assembleConfig(ctx context.Context) (Config, error) {
	c := Config{Name: o.Name, SubCluster: o.SubCluster, Token: o.Token, Logger: o.Logger}
	r, err := openRepository(o.Models, o.Strict)
	if err != nil {
		return c, err
	}

	for _, e := range r.Errors {
		o.Logger.Error("model left out", "model", e.Model, "err", e.Err)
		c.failed = append(c.failed, failedModel(e.Model, "", e.Err))
	}
	o.warnOfConfigs(r)

	o.leaveUnloaded(r, &c)
	library, missing := o.loadLibrary(r)
	if o.GPUs || library != nil {
		if o.kind, _, err = o.hostKind(library); err != nil {
			return c, err
		}
	}
	if !o.GPUs {
		c.hostKind = o.kind
	}

	if err := o.layoutModels(ctx, &c, r, library); err != nil {
		return c, err
	}
	if err := o.checkServes(&c, r, missing); err != nil {
		return c, err
	}

	// Models that come later are found, laid out and measured in the same way.
	c.Measure = o.measureProfile
	c.repository = &repository{dirs: o.modelDirectories(), control: o.Control, every: cmp.Or(o.PollEvery, pollEvery), options: o, library: library,
		overrides: o.commanded.overrides(), reasons: map[versionKey]string{}, commanded: o.commanded}

	// A model that nobody asked for has not failed.
	for _, f := range c.failed {
		if f.Reason != model.Unloaded {
			c.repository.reasons[versionKey{f.Name, f.Version}] = f.Reason
		}
	}
	c.Find = c.repository.readModels
	c.GPUs, err = o.makeExecutors(library)
	return c, err
}

// layoutModels lays out all models of the repository. Those that cannot be are logged and left out.
func (o *Options) layoutModels(ctx context.Context, c *Config, r *repo.Repository, library *ort.Runtime) error {
	for i := range r.Models {
		models, err := o.layoutAll(ctx, &r.Models[i], library)
		switch {
		case err == nil:
			c.Models = append(c.Models, models...)
		case errors.Is(err, ort.ErrMissing): // logged once, by checkServes or by its caller
		case ctx.Err() != nil:
			return err
		default:
			o.Logger.Error("model left out", "model", r.Models[i].Name, "version", r.Models[i].Version, "err", err)
			c.failed = append(c.failed, failedModel(r.Models[i].Name, r.Models[i].Version, err))
		}
	}
	return nil
}

// checkServes refuses a backend that serves no model, unless commands or polling may bring some later. missing is the
// reason why there is no ONNX Runtime.
func (o *Options) checkServes(c *Config, r *repo.Repository, missing error) error {
	c.MayBeEmpty = o.Control != ControlNone
	switch {
	case len(c.Models) == 0 && c.MayBeEmpty:
	case len(c.Models) == 0 && missing != nil:
		return fmt.Errorf("no model of %s can be served: %w", o.Models, missing)
	case len(c.Models) == 0:
		return fmt.Errorf("no model of %s can be served (%d found, %d bad); the log says why", o.Models, len(r.Models), len(r.Errors))
	case missing != nil:
		o.Logger.Error("real models are left out", "served", len(c.Models), "found", len(r.Models), "err", missing)
	}
	return nil
}

// modelDirectories returns the repositories in Models.
func (o *Options) modelDirectories() []string { return strings.Split(o.Models, ",") }

// openRepository opens the repositories in a list separated by commas.
func openRepository(list string, strict bool) (*repo.Repository, error) {
	o := repo.Options{Graph: onnx.Signature}

	// Without a graph reader, nothing completes a config.pbtxt.
	if strict {
		o.Graph = nil
	}

	return repo.OpenAll(strings.Split(list, ","), o)
}

// leaveUnloaded removes from r the models that are not loaded at start.
func (o *Options) leaveUnloaded(r *repo.Repository, c *Config) {
	all := slices.Contains(o.Load, "*")
	if o.Control != ControlExplicit || all && len(o.without) == 0 {
		return
	}
	wanted := func(name string) bool {
		return (all || slices.Contains(o.Load, name)) && !slices.Contains(o.without, name)
	}

	names := r.Names()

	// Errors of an unwanted model are reported when a command asks for it.
	c.failed = slices.DeleteFunc(c.failed, func(m model.Info) bool { return !wanted(m.Name) })
	for _, e := range r.Errors {
		names = append(names, e.Model)
	}

	for _, name := range names {
		if !wanted(name) {
			c.failed = append(c.failed, model.Info{Name: name, Reason: model.Unloaded})
		}
	}
	r.Models = slices.DeleteFunc(r.Models, func(m repo.Model) bool { return !wanted(m.Name) })

	// A requested model that does not exist is a failure, not a silent omission.
	for _, name := range o.Load {
		if name != "*" && !slices.Contains(names, name) && !slices.Contains(o.without, name) {
			o.Logger.Error("model left out", "model", name, "err", repo.ErrNotFound)
			c.failed = append(c.failed, failedModel(name, "", repo.ErrNotFound))
		}
	}
}

// warnOfConfigs logs the fields of models' configurations that are read but not honoured, once per model.
func (o *Options) warnOfConfigs(r *repo.Repository) {
	for i := range r.Models {
		if i > 0 && r.Models[i].Config == r.Models[i-1].Config {
			continue // another version
		}
		o.warnOf(&r.Models[i])
	}
}

func (o *Options) warnOf(m *repo.Model) {
	for _, w := range m.Config.Warnings {
		o.Logger.Warn("model configuration", "model", m.Name, "field", w)
	}
}

// cutReason cuts a reason to the limit of the repository's index.
func cutReason(why string) string {
	reason := strings.ToValidUTF8(why, "?")

	// A cut may split a character; its replacement may be longer than the removed bytes.
	for len(reason) > model.LabelBytesMax {
		reason = strings.ToValidUTF8(reason[:model.LabelBytesMax-len("…")], "") + "…"
	}

	return reason
}

// loadLibrary loads ONNX Runtime if a model of the repository needs it. Without it, only emulated models are served,
// and real ones that are emulated by a stored profile.
func (o *Options) loadLibrary(r *repo.Repository) (*ort.Runtime, error) {
	if o.Control != ControlNone { // a later model may have any platform
		return ort.Open(o.Library)
	}
	if !slices.ContainsFunc(r.Models, func(m repo.Model) bool { return m.Platform == repo.PlatformONNX }) {
		return nil, nil
	}

	return ort.Open(o.Library)
}
