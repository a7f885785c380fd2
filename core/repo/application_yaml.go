package repo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"gopkg.in/yaml.v3"

	"downbeat.dev/core/app"
	"downbeat.dev/core/model"
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
