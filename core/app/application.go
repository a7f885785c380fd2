package app

import (
	"fmt"
	"slices"
	"time"

	"downbeat.dev/core/model"
)

// Limits of an application.
const (
	StagesMax  = 64        // stages
	TensorsMax = 256       // tensors of a frame, over all stages
	FanOutMax  = 1024      // elements of a list
	LatencyMax = time.Hour // of a frame
	nameMax    = 128       // bytes of a name
)

// Application is a declared graph of stages under one deadline.
type Application struct {
	Name    string
	Latency time.Duration // default, for frames without a deadline
	Inputs  []Tensor      // of a frame; a dimension of -1 takes its size from the stages
	Outputs []Output      // of a frame
	Stages  []Stage       // in any order
	// BatchMax is the max_batch_size of an ensemble's configuration; 0: none. Every row is a frame.
	BatchMax int
	Text     string // an ensemble's config.pbtxt, for clients that ask for it
}

// Tensor flows between stages. Its Name is unique in the application.
type Tensor struct {
	model.Tensor
	// Most makes the tensor a list of at most this many elements, each of Shape; 0: a single tensor.
	Most int
	Mean float64 // expected elements of a list per frame
}

// Output is one tensor of an application's answer.
type Output struct {
	Name string // for clients
	Of   string // the tensor
	// Declared is the tensor as the application declares it; without a datatype it is not declared.
	Declared model.Tensor
}

// Flow is an input or output tensor of a stage.
type Flow struct {
	Port   string // name of the tensor in the model or hook
	Tensor string // name in the application
}

// Stage is one step of an application, run for each frame.
type Stage struct {
	Name    string
	Model   string // a model or a family; empty: the stage calls Hook
	Version string // empty: the newest
	Hook    string
	With    map[string]string // settings of the hook
	// Each names a list: the model is asked once per element. Empty: it is asked once per frame.
	Each     string
	Optional bool          // a frame has an answer even if this stage and the stages that need it fail
	Takes    []Flow        // by Port
	Gives    []Flow        // by Port
	Declares []Tensor      // tensors of a hook, one for each of Gives; nil for a model
	Fixed    time.Duration // time that a hook takes
}

// refuseField returns an error that names the application, the field, its value and what is allowed.
func (a *Application) refuseField(field string, value any, want string) error {
	if text, ok := value.(string); ok {
		value = fmt.Sprintf("%.60q", text)
	}
	return fmt.Errorf("application %q: %s: %v: want %s", a.Name, field, value, want)
}

// refuseField returns an error about one stage.
func (s *Stage) refuseField(a *Application, field string, value any, want string) error {
	return a.refuseField(fmt.Sprintf("stage %q: %s", s.Name, field), value, want)
}

// CheckNames checks an application by itself, without the models.
func (a *Application) CheckNames() error {
	switch {
	case !isName(a.Name):
		return a.refuseField("name", a.Name, nameRule)
	case a.Latency <= 0 || a.Latency > LatencyMax:
		return a.refuseField("latency", a.Latency, fmt.Sprintf("more than 0 and at most %v", LatencyMax))
	case len(a.Stages) < 1 || len(a.Stages) > StagesMax:
		return a.refuseField("stages", len(a.Stages), fmt.Sprintf("1 to %d", StagesMax))
	case len(a.Inputs) < 1:
		return a.refuseField("inputs", len(a.Inputs), "one or more")
	case len(a.Outputs) < 1:
		return a.refuseField("outputs", len(a.Outputs), "one or more")
	}

	for i := range a.Inputs {
		if err := checkInput(&a.Inputs[i].Tensor); err != nil {
			return fmt.Errorf("application %q: input %w", a.Name, err)
		}
	}
	if err := a.checkStages(); err != nil {
		return err
	}

	outputs := map[string]bool{}
	for _, o := range a.Outputs {
		if !isName(o.Name) || outputs[o.Name] {
			return a.refuseField("output", o.Name, nameRule+", that no other output has")
		}
		outputs[o.Name] = true
	}
	return nil
}

// checkInput checks an input tensor, whose dimensions may be -1.
func checkInput(t *model.Tensor) error {
	// All other rules hold for open dimensions, too, so check the tensor with 1 in their place.
	closed := *t
	closed.Shape = slices.Clone(t.Shape)
	for i, n := range closed.Shape {
		if n == -1 {
			closed.Shape[i] = 1
		}
	}
	return closed.Check()
}

// checkStages checks that the names of stages are distinct, and each stage by itself.
func (a *Application) checkStages() error {
	stages := map[string]bool{}
	for j := range a.Stages {
		s := &a.Stages[j]
		if !isName(s.Name) {
			return a.refuseField(fmt.Sprintf("stage %d: name", j), s.Name, nameRule)
		}
		if stages[s.Name] {
			return a.refuseField(fmt.Sprintf("stage %d: name", j), s.Name, "a name that no other stage has")
		}

		stages[s.Name] = true
		if err := a.checkStage(s); err != nil {
			return err
		}
	}
	return nil
}

// checkStage checks a stage by itself.
func (a *Application) checkStage(s *Stage) error {
	switch {
	case (s.Model == "") == (s.Hook == ""):
		return s.refuseField(a, "model and hook", [2]string{s.Model, s.Hook}, "exactly one of both")
	case s.Hook != "" && s.Each != "":
		return s.refuseField(a, "each", s.Each, "none: a hook takes whole lists")
	case s.Model != "" && (s.Fixed != 0 || len(s.With) > 0):
		return s.refuseField(a, "fixed time and settings", fmt.Sprint(s.Fixed, s.With), "none: they are a hook's")
	case s.Fixed < 0 || s.Fixed > LatencyMax:
		return s.refuseField(a, "fixed time", s.Fixed, fmt.Sprintf("0 to %v", LatencyMax))
	case len(s.Takes) == 0:
		return s.refuseField(a, "inputs", 0, "one or more")
	case len(s.Gives) == 0:
		return s.refuseField(a, "outputs", 0, "one or more")
	case s.Hook != "" && len(s.Declares) != len(s.Gives):
		return s.refuseField(a, "outputs", fmt.Sprintf("%d of %d declared", len(s.Declares), len(s.Gives)), "a datatype and a shape for each")
	}

	// Only its declaration describes a hook's tensors, so check them here. A model's tensors were checked when the
	// model was read.
	for i := range s.Declares {
		t := &s.Declares[i]
		field := fmt.Sprintf("output %q: ", t.Name)
		if err := t.Check(); err != nil {
			return fmt.Errorf("application %q: stage %q: output %w", a.Name, s.Name, err)
		}

		switch {
		case t.Varies():
			return s.refuseField(a, field+"datatype", string(t.Datatype), "one of fixed size")
		case t.Most < 0 || t.Most > FanOutMax:
			return s.refuseField(a, field+"most", t.Most, fmt.Sprintf("1 to %d elements, or none for a single tensor", FanOutMax))
		case !(t.Mean >= 0 && t.Mean <= float64(t.Most)):
			return s.refuseField(a, field+"mean", t.Mean, fmt.Sprintf("0 to %d elements, its most", t.Most))
		case t.RowBytes()*max(t.Most, 1) > model.TensorBytesMax:
			return s.refuseField(a, field+"size", t.RowBytes()*max(t.Most, 1), fmt.Sprintf("at most %d bytes", model.TensorBytesMax))
		}
	}
	return nil
}

const nameRule = "1 to 128 letters, digits, '-', '_', '.' or ':'"

// isName restricts names to characters that are safe in URLs, metrics, pictures and errors.
func isName(name string) bool {
	for _, c := range []byte(name) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' && c != ':' {
			return false
		}
	}
	return name != "" && len(name) <= nameMax
}
