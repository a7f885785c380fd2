package repo

import (
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/core/model"
)

// checkClasses refuses configurations that cannot have variable dimensions or optional inputs. Requests of such
// models are served in shape classes.
func (d *decoder) checkClasses(root *message, c *Config) error {
	info := c.info()
	if !info.HasClasses() {
		return nil
	}

	// Sequences and families need fixed tensors; the tensors of such a model depend on the request.
	at := value{at: root.at}
	switch {
	case c.Sequence != nil:
		return d.failAt(at, "sequence_batching", "the model has variable dimensions or optional inputs: a sequence's steps need inputs that are always there, of fixed dims")
	case c.Family != "":
		return d.failAt(at, "parameters.family", "the model has variable dimensions or optional inputs: a variant of %q needs inputs that are always there, of fixed dims", c.Family)
	}
	return nil
}

// info returns the part of a model's description that determines its shape classes.
func (c *Config) info() *model.Info {
	i := &model.Info{Inputs: tensorsOf(c.Inputs)}
	for k := range c.Inputs {
		if c.Inputs[k].Optional {
			i.Optional |= 1 << k
		}
	}
	return i
}

// IsOptional reports whether requests may leave out the named input.
func (c *Config) IsOptional(name string) bool {
	return c != nil && slices.ContainsFunc(c.Inputs, func(t TensorConfig) bool { return t.Name == name && t.Optional })
}

// HasClasses reports whether requests belong to shape classes, each of which is laid out separately (Class).
func (m *Model) HasClasses() bool { return m.Config != nil && m.Config.info().HasClasses() }

// OpenOutputs reports whether an output has a dimension that is unknown until the model runs.
func (m *Model) OpenOutputs() bool {
	return slices.ContainsFunc(m.Outputs, func(t model.Tensor) bool { return t.IsOpen() })
}

// ClassOf returns the name of the class of inputs with these shapes, as model.Info does.
func (m *Model) ClassOf(shapes [][]int64) (string, error) { return m.Config.info().ClassOf(shapes) }

// Class returns one shape class of m as a model of its own. It has the inputs that the class's requests give, with
// their shapes, and the outputs that a run returned. Its Whole is m.
func (m *Model) Class(class string, outputs []model.Tensor) (*Model, error) {
	shapes, err := m.Config.info().ClassShapes(class)
	if err != nil {
		return nil, err
	}

	// Executors read the graph's shapes from the configuration, so the class needs a configuration of its own.
	c := *m
	config := *m.Config
	config.Inputs = nil
	for k, t := range m.Config.Inputs {
		if shapes[k] != nil {
			t.Shape = shapes[k]
			config.Inputs = append(config.Inputs, t)
		}
	}
	c.Config, c.Whole, c.Inputs = &config, m, tensorsOf(config.Inputs)
	c.Version = model.ClassVersion(m.Version, class)
	c.Profiles = nil // the profiles were measured with other shapes
	c.Samples = slices.DeleteFunc(slices.Clone(m.Samples), func(s Sample) bool { return s.Class != class })
	return c.WithOutputs(outputs)
}

// WithOutputs returns m with the outputs' shapes that a run returned.
func (m *Model) WithOutputs(outputs []model.Tensor) (*Model, error) {
	c := *m
	config := *m.Config
	config.Outputs = slices.Clone(m.Config.Outputs)
	for k := range outputs {
		// An output that clients see in another shape than the graph's has no open dimension.
		if m.Config.Outputs[k].Reshape != nil {
			continue
		}
		if !m.Outputs[k].Fits(outputs[k].Shape) {
			return nil, fmt.Errorf("output %q: has shape %v, the configuration says %v", outputs[k].Name, outputs[k].Shape, m.Outputs[k].Shape)
		}
		config.Outputs[k].Shape = outputs[k].Shape
	}
	c.Config, c.Outputs = &config, tensorsOf(config.Outputs)
	return &c, nil
}

// Standing returns the class c in the place of m. A model with classes takes no requests itself, but its file is
// loaded, run and measured in one class before any request arrives.
func (m *Model) Standing(c *Model) *Model {
	s := *c
	s.Version, s.Standard = m.Version, true
	return &s
}

// SampleClasses returns the classes of the samples in model_warmup, in order. They are loaded from the start.
func (m *Model) SampleClasses() (all []string) {
	for i := range m.Samples {
		if c := m.Samples[i].Class; c != "" && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// EvenClass returns the class of requests with all inputs in which every open dimension has the given size.
func (m *Model) EvenClass(size int64) (string, error) {
	shapes := make([][]int64, len(m.Inputs))
	for k := range m.Inputs {
		// Clone: the model's own shape marks the open dimensions.
		shapes[k] = slices.Clone(m.Inputs[k].Shape)
		for i := range shapes[k] {
			if shapes[k][i] == model.OpenDim {
				shapes[k][i] = size
			}
		}
	}
	return m.ClassOf(shapes)
}

// EmulatedOutputs returns the outputs of an emulated model for a class. An output's open dimensions are, in order,
// those of the inputs, and 1 beyond their number.
func (m *Model) EmulatedOutputs(class string) ([]model.Tensor, error) {
	shapes, err := m.Config.info().ClassShapes(class)
	if err != nil {
		return nil, err
	}

	// Sizes of open dimensions, in the order of the inputs.
	var sizes []int64
	for k := range m.Inputs {
		for i, n := range m.Inputs[k].Shape {
			if n == model.OpenDim && shapes[k] != nil {
				sizes = append(sizes, shapes[k][i])
			}
		}
	}

	// Every output starts with the first of these sizes.
	outputs := slices.Clone(m.Outputs)
	for k := range outputs {
		left := sizes
		outputs[k].Shape = slices.Clone(outputs[k].Shape)
		for i, n := range outputs[k].Shape {
			if n == model.OpenDim {
				outputs[k].Shape[i] = 1
				if len(left) > 0 {
					outputs[k].Shape[i], left = left[0], left[1:]
				}
			}
		}
	}
	return outputs, nil
}

// sampleClass returns the class of a sample's inputs; "" for a model without classes.
func (c *Config) sampleClass(w *Warmup) (string, error) {
	info := c.info()
	if !info.HasClasses() {
		return "", nil
	}

	// Inputs that the sample does not name are left out.
	shapes := make([][]int64, len(c.Inputs))
	for k := range c.Inputs {
		for i := range w.Inputs {
			if w.Inputs[i].Name == c.Inputs[k].Name {
				shapes[k] = w.Inputs[i].Shape
			}
		}
	}
	return info.ClassOf(shapes)
}

// errClasses is the reason why an application cannot use a model with shape classes.
var errClasses = errors.New("it has variable dimensions or optional inputs: a stage needs tensors of fixed dims that are always there")
