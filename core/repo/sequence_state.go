package repo

import (
	"fmt"
	"path/filepath"

	"downbeat.dev/core/model"
)

// stateConfig is one entry of state.
type stateConfig struct {
	model.State
	tensor  TensorConfig // named as the input
	initial struct {
		name, file string
		datatype   model.Datatype
		shape      []int64
		given      bool
	}
}

func (d *decoder) sequenceState(s *sequenceConfig) func(value) error {
	return func(v value) error {
		var x stateConfig
		err := d.decodeFields(v.sub, "sequence_batching.state", rules{
			"input_name":                       {read: d.readText(&x.Input)},
			"output_name":                      {read: d.readText(&x.Output)},
			"data_type":                        {read: d.readDatatype(&x.tensor.Datatype)},
			"dims":                             {read: d.readDim(&x.tensor.Shape, "sequence_batching.state.dims"), repeated: true},
			"initial_state":                    {read: d.initialState(&x)},
			"use_same_buffer_for_input_output": d.ignoredField("state travels with its step"),
			"use_growable_memory":              {read: d.mustBeFalse("a state has one size")},
		}, v)
		if err != nil {
			return err
		}

		// The output has the same form, so one description serves both.
		x.tensor.Name = x.Input
		in := &x.initial
		switch {
		case x.Input == "" || x.Output == "":
			return d.failAt(value{at: v.at}, "sequence_batching.state", "%q, %q: want input_name and output_name", x.Input, x.Output)
		case x.tensor.Datatype == model.Bytes:
			return d.failAt(value{at: v.at}, "sequence_batching.state.data_type", "%q: texts have no fixed size; want another data_type", x.Input)
		case len(s.states) == model.SequenceTensorsMax:
			return d.failAt(value{at: v.at}, "sequence_batching.state", "want at most %d", model.SequenceTensorsMax)
		case in.given && (in.datatype != x.tensor.Datatype || countElements(in.shape) != countElements(x.tensor.Shape)):
			return d.failAt(value{at: v.at}, "sequence_batching.state.initial_state", "%q: %s %v: want the state's data_type and as many elements as dims have, %s %v", x.Input, in.datatype, in.shape, x.tensor.Datatype, x.tensor.Shape)
		}
		if err := d.checkTensor(v, "sequence_batching.state", x.tensor, false); err != nil {
			return err
		}
		s.states = append(s.states, x)
		return nil
	}
}

func (d *decoder) initialState(x *stateConfig) func(value) error {
	return func(v value) error {
		in := &x.initial
		var zero bool
		err := d.decodeFields(v.sub, "sequence_batching.state.initial_state", rules{
			"name":      {read: d.readText(&in.name)},
			"data_type": {read: d.readDatatype(&in.datatype)},
			"dims":      {read: d.readDim(&in.shape, "sequence_batching.state.initial_state.dims"), repeated: true},
			"zero_data": {read: func(v value) error { zero = isTrue(v); return nil }},
			"data_file": {read: d.fileName(&in.file)},
		}, v)
		if err != nil {
			return err
		}

		// A state needs exactly one of zeros and a file.
		if zero == (in.file != "") {
			return d.failAt(value{at: v.at}, "sequence_batching.state.initial_state", "%q: want one of zero_data and data_file", in.name)
		}
		in.given = true
		return nil
	}
}

// readInitialStates reads the data files of initial states, below dir/initial_state.
func (c *Config) readInitialStates(dir string) error {
	for i, file := range c.initial {
		if file == "" {
			continue
		}

		x := &c.Sequence.States[i]
		text, err := readLimited(filepath.Join(dir, "initial_state", file), model.InitialBytesMax)
		if err != nil {
			return fmt.Errorf("initial state of %q: %w", x.Input, err)
		}
		x.Initial = text
	}
	if c.Sequence == nil {
		return nil
	}
	if err := c.Sequence.Check(tensorsOf(c.Inputs), tensorsOf(c.Outputs)); err != nil {
		return fmt.Errorf("sequence_batching: %w", err)
	}
	return nil
}
