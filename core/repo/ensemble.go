package repo

import (
	"fmt"
	"slices"

	"downbeat.dev/core/app"
)

// platformEnsemble is Triton's name for a model that is a graph of others.
const platformEnsemble = "ensemble"

// ParseEnsemble parses a config.pbtxt with ensemble_scheduling as an application. Each step is a stage, named after
// its model. The models determine dimensions of -1. The latency is the parameter slo_ms, else DefaultSLO. Errors are
// *SyntaxError, or name the stage and the field.
func ParseEnsemble(file, name string, text []byte) (app.Application, error) {
	root, err := parseText(file, text)
	if err != nil {
		return app.Application{}, err
	}

	var warnings []string
	var platform, own string
	e := &ensemble{decoder: decoder{file: file, warnings: &warnings, variable: true}, app: app.Application{Name: name, Latency: DefaultSLO, Text: (&Config{text: string(text)}).wireText()}}
	c := new(Config)
	params := map[string]value{}

	err = e.decodeFields(root, "", rules{
		"name":                     {read: e.readText(&own)},
		"platform":                 {read: e.enumText(&platform, platformEnsemble)},
		"backend":                  {read: e.enumText(new(string), "")},
		"max_batch_size":           {read: e.readInteger(&e.app.BatchMax, 0, BatchMaxLimit)},
		"input":                    {read: e.readTensor(&c.Inputs, "input"), repeated: true},
		"output":                   {read: e.readTensor(&c.Outputs, "output"), repeated: true},
		"version_policy":           {read: e.versionPolicy(&c.Versions)},
		"parameters":               {read: e.readParameter(params), repeated: true},
		"ensemble_scheduling":      {read: e.readScheduling},
		"dynamic_batching":         e.ignoredField("the models of the steps batch, each by itself"),
		"instance_group":           e.ignoredField("an ensemble runs nothing itself"),
		"model_warmup":             e.ignoredField("the models of the steps are warmed up, each by itself"),
		"optimization":             e.ignoredField("an ensemble runs nothing itself"),
		"model_transaction_policy": {read: e.transactionPolicy()},
		"response_cache":           {read: e.responseCache()},
		"metric_tags":              e.ignoredField("metrics are labelled by model and version"),
	})
	if err != nil {
		return app.Application{}, err
	}

	if own != "" && own != name {
		return app.Application{}, fmt.Errorf("%s: name: %q: want the directory's name %q, or none", file, own, name)
	}
	if err := e.readMillis(params, "slo_ms", &e.app.Latency, sloMax); err != nil {
		return app.Application{}, err
	}

	// The declared tensors are announced to clients, so outputs are compared with the models'.
	for _, t := range c.Inputs {
		e.app.Inputs = append(e.app.Inputs, app.Tensor{Tensor: t.Tensor})
	}
	for _, t := range c.Outputs {
		e.app.Outputs = append(e.app.Outputs, app.Output{Name: t.Name, Of: t.Name, Declared: t.Tensor})
	}
	if err := e.app.CheckNames(); err != nil {
		return app.Application{}, fmt.Errorf("%s: %w", file, err)
	}
	return e.app, nil
}

// ensemble is the state of one ParseEnsemble.
type ensemble struct {
	decoder
	app app.Application
}

func (e *ensemble) readScheduling(v value) error {
	return e.decodeFields(v.sub, "ensemble_scheduling", rules{"step": {read: e.readStep, repeated: true}}, v)
}

// readStep reads one step as a stage.
func (e *ensemble) readStep(v value) error {
	if len(e.app.Stages) == app.StagesMax {
		return e.failAt(v, "ensemble_scheduling.step", "want at most %d steps", app.StagesMax)
	}

	s := app.Stage{}
	version := -1
	err := e.decodeFields(v.sub, "ensemble_scheduling.step", rules{
		"model_name":      {read: e.readText(&s.Model)},
		"model_version":   {read: e.readInteger(&version, -1, 1<<62)},
		"model_namespace": {read: e.enumText(new(string), "")},
		"input_map":       {read: e.readFlow(&s.Takes), repeated: true},
		"output_map":      {read: e.readFlow(&s.Gives), repeated: true},
	}, v)
	if err != nil {
		return err
	}
	if s.Model == "" {
		return e.failAt(value{at: v.at}, "ensemble_scheduling.step.model_name", "a step needs the name of its model")
	}
	if version > 0 {
		s.Version = fmt.Sprint(version)
	}

	// Two steps may ask the same model, so number the names.
	s.Name = s.Model
	for n := 2; slices.ContainsFunc(e.app.Stages, func(o app.Stage) bool { return o.Name == s.Name }); n++ {
		s.Name = fmt.Sprintf("%s:%d", s.Model, n)
	}
	e.app.Stages = append(e.app.Stages, s)
	return nil
}

// readFlow returns a reader of input_map or output_map entries: the key is the model's tensor, the value the
// ensemble's.
func (e *ensemble) readFlow(out *[]app.Flow) func(value) error {
	return func(v value) error {
		if len(*out) == tensorsMax {
			return e.failAt(v, "", "a step may have at most %d entries", tensorsMax)
		}
		var f app.Flow
		err := e.decodeFields(v.sub, "map", rules{"key": {read: e.readText(&f.Port)}, "value": {read: e.readText(&f.Tensor)}}, v)
		*out = append(*out, f)
		return err
	}
}

// enumText returns a reader of one of the allowed texts. Empty text is always allowed.
func (d *decoder) enumText(out *string, allowed ...string) func(value) error {
	return func(v value) error {
		if err := d.readText(out)(v); err != nil {
			return err
		}
		if *out != "" && !slices.Contains(allowed, *out) {
			return d.failAt(v, "", "want one of %q, or none", allowed)
		}
		return nil
	}
}
