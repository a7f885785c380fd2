package repo

import (
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/core/model"
)

// checkClasses refuses what cannot go together with variable dimensions and optional inputs, whose requests are served in
// shape classes.
func (d *decoder) checkClasses(root *message, c *Config) error {
	info := c.info()
	if !info.HasClasses() {
		return nil
	}

	// What takes part in something larger is asked for by its tensors, which are those of no request yet.
	at := value{at: root.at}
	switch {
	case c.Sequence != nil:
		return d.failAt(at, "sequence_batching", "the model has variable dimensions or optional inputs: a sequence's steps need inputs that are always there, of fixed dims")
	case c.Family != "":
		return d.failAt(at, "parameters.family", "the model has variable dimensions or optional inputs: a variant of %q needs inputs that are always there, of fixed dims", c.Family)
	}
	return nil
}

// info is what of a model's description its shape classes follow from.
func (c *Config) info() *model.Info {
	i := &model.Info{Inputs: tensorsOf(c.Inputs)}
	for k := range c.Inputs {
		if c.Inputs[k].Optional {
			i.Optional |= 1 << k
		}
	}
	return i
}

// IsOptional tells whether requests may leave out the input of a name.
func (c *Config) IsOptional(name string) bool {
	return c != nil && slices.ContainsFunc(c.Inputs, func(t TensorConfig) bool { return t.Name == name && t.Optional })
}

// HasClasses reports whether requests for the model belong to shape classes, of which each is laid out for itself (Class).
func (m *Model) HasClasses() bool { return m.Config != nil && m.Config.info().HasClasses() }

// OpenOutputs reports whether a dimension of an output is not known before the model has run.
func (m *Model) OpenOutputs() bool {
	return slices.ContainsFunc(m.Outputs, func(t model.Tensor) bool { return t.IsOpen() })
}

// ClassOf names the class of inputs with these shapes, as model.Info does.
func (m *Model) ClassOf(shapes [][]int64) (string, error) { return m.Config.info().ClassOf(shapes) }

// Class returns one shape class of m as a model of its own: the inputs that its requests give, with the class's shapes, and
// the outputs as they were told by a run. Its Whole is m.
func (m *Model) Class(class string, outputs []model.Tensor) (*Model, error) {
	shapes, err := m.Config.info().ClassShapes(class)
	if err != nil {
		return nil, err
	}

	// Executors ask the configuration for the graph's shapes, so that the class has one of its own.
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
	c.Profiles = nil // what was measured was measured with other shapes
	c.Samples = slices.DeleteFunc(slices.Clone(m.Samples), func(s Sample) bool { return s.Class != class })
	return c.WithOutputs(outputs)
}

// WithOutputs returns m with outputs whose shapes a run has told.
func (m *Model) WithOutputs(outputs []model.Tensor) (*Model, error) {
	c := *m
	config := *m.Config
	config.Outputs = slices.Clone(m.Config.Outputs)
	for k := range outputs {
		// What clients see in another shape than the graph's has no open dimension.
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

// Standing returns the class c as what m itself is loaded as: a model that has classes takes no request of its own, but its
// file is read, run and measured in one of them before anybody asks.
func (m *Model) Standing(c *Model) *Model {
	s := *c
	s.Version, s.Standard = m.Version, true
	return &s
}

// SampleClasses are the classes that model_warmup has samples of, in its order: they are loaded from the start.
func (m *Model) SampleClasses() (all []string) {
	for i := range m.Samples {
		if c := m.Samples[i].Class; c != "" && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

// EvenClass is the class whose requests give all inputs and whose open dimensions all have one size.
func (m *Model) EvenClass(size int64) (string, error) {
	shapes := make([][]int64, len(m.Inputs))
	for k := range m.Inputs {
		// A copy: the model's own shape says which dimensions are open.
		shapes[k] = slices.Clone(m.Inputs[k].Shape)
		for i := range shapes[k] {
			if shapes[k][i] == model.OpenDim {
				shapes[k][i] = size
			}
		}
	}
	return m.ClassOf(shapes)
}

// EmulatedOutputs are the outputs that an emulated model gives for inputs of a class: an output's open dimensions are, in
// their order, the inputs' ones, and 1 where those have no more.
func (m *Model) EmulatedOutputs(class string) ([]model.Tensor, error) {
	shapes, err := m.Config.info().ClassShapes(class)
	if err != nil {
		return nil, err
	}

	// The sizes of open dimensions, in the order of the inputs.
	var sizes []int64
	for k := range m.Inputs {
		for i, n := range m.Inputs[k].Shape {
			if n == model.OpenDim && shapes[k] != nil {
				sizes = append(sizes, shapes[k][i])
			}
		}
	}

	// Each output begins with the first of them.
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

// sampleClass names the class that a sample's inputs belong to, "" of a model without classes.
func (c *Config) sampleClass(w *Warmup) (string, error) {
	info := c.info()
	if !info.HasClasses() {
		return "", nil
	}

	// What the sample does not name it leaves out.
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

// errClasses says why a model that has shape classes is not taken where one model has one set of tensors.
var errClasses = errors.New("it has variable dimensions or optional inputs: a stage needs tensors of fixed dims that are always there")
