package repo

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"downbeat.dev/core/app"
	"downbeat.dev/core/model"
	"downbeat.dev/core/profile"
)

const (
	applicationFile     = "application.yaml"
	applicationBytesMax = 1 << 20
	settingsMax         = 64 // settings of a hook
)

// applicationYAML is an application.yaml as written.
type applicationYAML struct {
	Name      string
	LatencyMS float64 `yaml:"latency_ms"`
	Inputs    []tensorYAML
	Outputs   []struct{ Name, Of string }
	Stages    []stageYAML
}

type stageYAML struct {
	Name, Model, Version, Hook, Each string
	Optional                         bool
	FixedMS                          float64 `yaml:"fixed_ms"`
	With                             map[string]string
	Inputs                           map[string]string // by the tensor's name in the model or hook
	Outputs                          map[string]string // of a model, likewise
	Gives                            []tensorYAML      // of a hook
}

type tensorYAML struct {
	Name, Datatype string
	Shape          []int64
	Most           int
	Mean           float64
}

// ParseApplication parses an application.yaml; file is used only in errors. It checks that the stages fit each other
// by name; Repository.Graphs checks them against the models. An application without a name gets the given one.
func ParseApplication(file, name string, text []byte) (app.Application, error) {
	// Check names before their first use: they go into metrics, URLs and pictures.
	a, err := parseApplication(name, text)
	if err == nil {
		err = a.CheckNames()
	}
	if err != nil {
		return app.Application{}, fmt.Errorf("%s: %w", file, err)
	}
	return a, nil
}

func parseApplication(name string, text []byte) (a app.Application, err error) {
	if len(text) > applicationBytesMax {
		return a, fmt.Errorf("%d bytes: want at most %d", len(text), applicationBytesMax)
	}

	// Refuse unknown fields: a misspelt field would count as left out.
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	var y applicationYAML
	if err := d.Decode(&y); err != nil {
		return a, err
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return a, errors.New("more than one document: want one application in a file")
	}
	if y.Name != "" && y.Name != name {
		return a, fmt.Errorf("name: %q: want the directory's name %q, or none", shortenText(y.Name), name)
	}

	// The application itself checks the rest: names, limits and connections.
	a.Name = name
	if a.Latency, err = millisYAML("latency_ms", y.LatencyMS); err != nil {
		return a, err
	}

	for _, t := range y.Inputs {
		a.Inputs = append(a.Inputs, t.asTensor())
	}
	for _, o := range y.Outputs {
		a.Outputs = append(a.Outputs, app.Output{Name: o.Name, Of: o.Of})
	}

	// Check the count before building the stages, so that a long file does not become a long list.
	if len(y.Stages) > app.StagesMax {
		return a, fmt.Errorf("stages: %d: want at most %d", len(y.Stages), app.StagesMax)
	}
	for i := range y.Stages {
		s, err := y.Stages[i].asStage()
		if err != nil {
			return a, fmt.Errorf("stage %q: %w", shortenText(y.Stages[i].Name), err)
		}
		a.Stages = append(a.Stages, s)
	}
	return a, nil
}

// asStage checks what only a file can have wrong.
func (y *stageYAML) asStage() (app.Stage, error) {
	s := app.Stage{Name: y.Name, Model: y.Model, Version: y.Version, Hook: y.Hook, With: y.With, Each: y.Each, Optional: y.Optional,
		Takes: sortFlows(y.Inputs), Gives: sortFlows(y.Outputs)}
	switch {
	case y.Hook != "" && len(y.Outputs) > 0:
		return s, errors.New("outputs: want gives, a list of tensors: only the application describes the outputs of a hook")
	case y.Hook == "" && len(y.Gives) > 0:
		return s, errors.New("gives: want outputs, the names of the model's outputs: the model says the rest")
	case len(y.With) > settingsMax:
		return s, fmt.Errorf("with: %d settings: want at most %d", len(y.With), settingsMax)
	}

	for _, t := range y.Gives {
		s.Gives = append(s.Gives, app.Flow{Port: t.Name, Tensor: t.Name})
		s.Declares = append(s.Declares, t.asTensor())
	}

	var err error
	s.Fixed, err = millisYAML("fixed_ms", y.FixedMS)
	return s, err
}

func (t *tensorYAML) asTensor() app.Tensor {
	// Plan for a list's longest length if no mean is given.
	mean := t.Mean
	if mean == 0 {
		mean = float64(t.Most)
	}
	return app.Tensor{Tensor: model.Tensor{Name: t.Name, Datatype: model.Datatype(t.Datatype), Shape: t.Shape}, Most: t.Most, Mean: mean}
}

// sortFlows sorts a mapping, so that its order is always the same.
func sortFlows(byPort map[string]string) (all []app.Flow) {
	for _, port := range slices.Sorted(maps.Keys(byPort)) {
		all = append(all, app.Flow{Port: port, Tensor: byPort[port]})
	}
	return all
}

// millisYAML converts milliseconds. The application checks the range.
func millisYAML(field string, ms float64) (time.Duration, error) {
	if most := float64(app.LatencyMax / time.Millisecond); !(ms >= 0 && ms <= most) {
		return 0, fmt.Errorf("%s: %v: want milliseconds from 0 to %v", field, ms, most)
	}
	return time.Duration(ms * float64(time.Millisecond)), nil
}

// openApplication reads the application in a directory; found is false if the directory has a model or nothing.
func openApplication(dir, name string) (a app.Application, found bool, err error) {
	// Report an invalid name once, where the model is read.
	if err := checkName(name); err != nil {
		return a, false, nil // the model's error reports it
	}

	// An application.yaml takes precedence over a config.pbtxt.
	path := filepath.Join(dir, applicationFile)
	text, err := readLimited(path, applicationBytesMax)
	if err == nil {
		a, err = ParseApplication(path, name, text)
		return a, true, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return a, true, err
	}

	path = filepath.Join(dir, "config.pbtxt")
	if text, err = readLimited(path, configBytesMax); err != nil || !isEnsemble(text) {
		return a, false, nil
	}
	a, err = ParseEnsemble(path, name, text)
	return a, true, err
}

// Graphs checks the applications against the models. It leaves out applications that do not fit and returns the
// reasons.
func (r *Repository) Graphs() (graphs []*app.Graph, refused []ModelError) {
	for _, a := range r.Applications {
		g, err := app.Resolve(a, r.signatureOf)
		// One application that does not fit must not take the others out of service.
		if err != nil {
			refused = append(refused, ModelError{Model: a.Name, Err: err})
			continue
		}
		graphs = append(graphs, g)
	}
	return graphs, refused
}

// Profile returns ℓ(b) of a model, or of a family's fastest variant, on the host on which a single request is
// fastest; nil if none was measured.
func (r *Repository) Profile(name, version string) *profile.Profile {
	return r.ProfileAt(name, version, 0)
}

// ProfileAt is Profile restricted to a family's variants with an accuracy of at least floor, 0 to 1. It returns nil
// also if no variant reaches the floor. The floor does not apply to a single model.
func (r *Repository) ProfileAt(name, version string, floor float64) *profile.Profile {
	// A model's own name takes precedence over a family of the same name.
	members := r.membersOf(name)
	if m, err := r.Find(name, version); err == nil {
		members, floor = []*Model{m}, 0
	}

	var best *profile.Profile
	for _, m := range members {
		if cmp.Or(m.Accuracy, m.Config.Accuracy) < floor {
			continue
		}
		tables := [][]time.Duration{m.Table()}
		for _, p := range m.Profiles {
			tables = append(tables, p.TableNS)
		}
		for _, t := range tables {
			p, err := profile.New(t)
			if err == nil && (best == nil || p.Exec(1) < best.Exec(1)) {
				best = p
			}
		}
	}
	return best
}

// signatureOf returns the signature of a model or a family for an application.
func (r *Repository) signatureOf(name, version string) (app.Signature, error) {
	members := r.membersOf(name)
	if m, err := r.Find(name, version); err == nil {
		members = []*Model{m}
	} else if len(members) == 0 || version != "" {
		return app.Signature{}, err
	}

	if members[0].HasClasses() {
		return app.Signature{}, fmt.Errorf("model %q: %w", name, errClasses)
	}
	if members[0].Config.Sequence.HasID() {
		return app.Signature{}, fmt.Errorf("model %q: CONTROL_SEQUENCE_CORRID: want a model that does without a sequence's number: those of an application's sessions have none", name)
	}

	// Use the first member's tensors for the family: every variant must answer in the same form.
	s := app.Signature{Inputs: members[0].Inputs, Outputs: members[0].Outputs, SLO: members[0].SLO, Sequence: members[0].Config.Sequence != nil}

	// An application does not supply the tensors that sequence_batching adds.
	in, out := members[0].Config.Sequence.Hidden()
	s.Inputs, s.Outputs = s.Inputs[:len(s.Inputs)-in], s.Outputs[:len(s.Outputs)-out]
	for i, m := range members {
		if least := m.leastTime(); i == 0 || least < s.Least {
			s.Least = least
		}
	}
	return s, nil
}

// membersOf returns the models of a family.
func (r *Repository) membersOf(family string) (all []*Model) {
	for i := range r.Models {
		if m := &r.Models[i]; family != "" && m.Config.Family == family {
			all = append(all, m)
		}
	}
	return all
}

// leastTime returns the time of a single request on the fastest measured host; 0 if none was measured.
func (m *Model) leastTime() time.Duration {
	// An emulated model's configuration states its time on any host.
	if m.Platform == PlatformEmulated {
		return m.Config.Emulated.Exec(1)
	}

	least := time.Duration(0)
	for _, p := range m.Profiles {
		if t := p.TableNS[0]; least == 0 || t < least {
			least = t
		}
	}
	return least
}

// applicationNames returns the names of all applications.
func (r *Repository) applicationNames() (names []string) {
	for i := range r.Applications {
		names = append(names, r.Applications[i].Name)
	}
	return names
}

// isEnsemble reports whether a configuration is an ensemble's, as far as an invalid text shows.
func isEnsemble(text []byte) bool {
	root, err := parseText("", text)
	// A text that cannot be parsed counts as a model's, whose reader reports the place of the error.
	if err != nil {
		return false
	}
	platform, _ := root.findField("platform")
	_, scheduled := root.findField("ensemble_scheduling")
	return scheduled || strings.EqualFold(platform.text, platformEnsemble)
}
