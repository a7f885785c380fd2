package repo

import (
	"encoding/binary"
	"math"
	"slices"
	"time"

	"downbeat.dev/core/model"
)

// sequenceIdle is the default of max_sequence_idle_microseconds, as in Triton.
const sequenceIdle = time.Second

// sequenceConfig is sequence_batching as read.
type sequenceConfig struct {
	idle     int // µs
	controls []model.Control
	inputs   []TensorConfig // of controls
	states   []stateConfig
}

func (d *decoder) sequenceBatching(out **sequenceConfig) func(value) error {
	return func(v value) error {
		s := &sequenceConfig{}
		*out = s
		return d.decodeFields(v.sub, "sequence_batching", rules{
			"max_sequence_idle_microseconds": {read: d.readInteger(&s.idle, 0, int(sloMax/time.Microsecond))},
			"control_input":                  {read: d.controlInput(s), repeated: true},
			"state":                          {read: d.sequenceState(s), repeated: true},
			"direct":                         {read: d.sequenceStrategy("direct", "max_queue_delay_microseconds", "minimum_slot_utilization")},
			"oldest":                         {read: d.sequenceStrategy("oldest", "max_queue_delay_microseconds", "max_candidate_sequences", "preferred_batch_size", "preserve_ordering")},
			"iterative_sequence":             {read: d.mustBeFalse("every request has one answer")},
			"generative_sequence":            {read: d.mustBeFalse("every request has one answer")},
		}, v)
	}
}

// sequenceStrategy returns a reader of direct or oldest. Both are honoured in their promise: one step of a sequence
// after the other. Triton's way of filling batches is not.
func (d *decoder) sequenceStrategy(name string, fields ...string) func(value) error {
	return func(v value) error {
		known := rules{}
		for _, field := range fields {
			known[field] = d.ignoredField("a batch is made of the steps that wait, whichever sequences they belong to: no sequence has a slot or waits for another")
		}
		return d.decodeFields(v.sub, "sequence_batching."+name, known, v)
	}
}

// controlKinds are the control kinds of Triton's ModelSequenceBatching.Control.
var controlKinds = map[string]model.ControlKind{
	"CONTROL_SEQUENCE_START": model.ControlStart, "CONTROL_SEQUENCE_END": model.ControlEnd,
	"CONTROL_SEQUENCE_READY": model.ControlReady, "CONTROL_SEQUENCE_CORRID": model.ControlID,
}

func (d *decoder) controlInput(s *sequenceConfig) func(value) error {
	return func(v value) error {
		var name string
		count := 0
		c := model.Control{}
		t := TensorConfig{}

		err := d.decodeFields(v.sub, "sequence_batching.control_input", rules{
			"name":    {read: d.readText(&name)},
			"control": {read: func(v value) error { count++; return d.readControl(&c, &t)(v) }, repeated: true},
		}, v)
		switch {
		case err != nil:
			return err
		case name == "" || count != 1:
			return d.failAt(value{at: v.at}, "sequence_batching.control_input", "%q with %d controls: want a name and one control", name, count)
		case len(s.controls) == model.SequenceTensorsMax:
			return d.failAt(value{at: v.at}, "sequence_batching.control_input", "want at most %d", model.SequenceTensorsMax)
		case slices.ContainsFunc(s.controls, func(o model.Control) bool { return o.Kind == c.Kind }):
			return d.failAt(value{at: v.at}, "sequence_batching.control_input", "%q: another control is of the same kind", name)
		}

		c.Input, t.Name, t.Shape = name, name, []int64{1}
		s.controls, s.inputs = append(s.controls, c), append(s.inputs, t)
		return nil
	}
}

// readControl returns a reader of a control's tensor and of its values for false and true.
func (d *decoder) readControl(c *model.Control, t *TensorConfig) func(value) error {
	return func(v value) error {
		var kind string
		var whole, truth []int
		var real []float64
		err := d.decodeFields(v.sub, "sequence_batching.control_input.control", rules{
			"kind":             {read: d.readEnum(&kind, "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY", "CONTROL_SEQUENCE_CORRID")},
			"int32_false_true": {read: d.readIntegers(&whole, math.MinInt32, math.MaxInt32), repeated: true},
			"fp32_false_true":  {read: d.readReals(&real), repeated: true},
			"bool_false_true":  {read: d.readTruths(&truth), repeated: true},
			"data_type":        {read: d.readDatatype(&t.Datatype)},
		}, v)
		if err != nil {
			return err
		}

		// START is 0 in the protocol, so a control without a kind is START.
		if kind == "" {
			kind = "CONTROL_SEQUENCE_START"
		}
		c.Kind = controlKinds[kind]

		// The values' datatype is the tensor's. Several lists conflict in size or are too many.
		var values [][]byte
		for _, n := range whole {
			t.Datatype, values = model.Int32, append(values, binary.LittleEndian.AppendUint32(nil, uint32(int32(n))))
		}
		for _, x := range real {
			t.Datatype, values = model.FP32, append(values, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(x))))
		}
		for _, n := range truth {
			t.Datatype, values = model.Bool, append(values, []byte{byte(n)})
		}

		if c.Kind == model.ControlID {
			if len(values) > 0 || t.Datatype == "" || t.Datatype == model.Bytes {
				return d.failAt(value{at: v.at}, "sequence_batching.control_input.control", "%s: want data_type of TYPE_UINT64, TYPE_INT64, TYPE_UINT32 or TYPE_INT32, and no values: sequences that are named by text have no number", kind)
			}
			return nil
		}
		if len(values) != 2 || len(values[0]) != len(values[1]) {
			return d.failAt(value{at: v.at}, "sequence_batching.control_input.control", "%s: want two values in one of int32_false_true, fp32_false_true and bool_false_true", kind)
		}
		c.False, c.True = values[0], values[1]
		return nil
	}
}

func (d *decoder) readReals(out *[]float64) func(value) error {
	return func(v value) error {
		x, err := parseFloat(v.text)
		if err != nil || v.sub != nil || len(*out) == 2 {
			return d.failAt(v, "", "want two numbers")
		}
		*out = append(*out, x)
		return nil
	}
}

func (d *decoder) readTruths(out *[]int) func(value) error {
	return func(v value) error {
		if v.sub != nil || v.text != "true" && v.text != "false" || len(*out) == 2 {
			return d.failAt(v, "", "want false, true")
		}
		*out = append(*out, map[string]int{"false": 0, "true": 1}[v.text])
		return nil
	}
}

// settleSequence appends the tensors of sequence_batching to those of clients. If the tensors come from the graph, it
// moves them there.
func (d *decoder) settleSequence(root *message, c *Config, s *sequenceConfig) error {
	v, _ := root.findField("sequence_batching")
	if s == nil {
		return nil
	}
	if c.Family != "" {
		return d.failAt(value{at: v.at}, "sequence_batching", "the model is a variant of %q: one variant's state is not another's", c.Family)
	}

	if s.idle == 0 {
		s.idle = int(sequenceIdle / time.Microsecond)
	}
	c.Sequence = &model.Sequence{Idle: int64(s.idle) * int64(time.Microsecond), Controls: s.controls}

	// Controls come before states: the code that assembles a step relies on this order.
	inputs := s.inputs
	var outputs []TensorConfig
	for _, x := range s.states {
		inputs = append(inputs, x.tensor)
		out := x.tensor
		out.Name = x.Output
		outputs = append(outputs, out)
		c.Sequence.States = append(c.Sequence.States, x.State)
		c.initial = append(c.initial, x.initial.file)
	}

	// A tensor that the file also names itself would exist twice.
	for _, list := range []struct {
		what   string
		told   bool
		own    *[]TensorConfig
		hidden []TensorConfig
	}{{"input", c.graphInputs, &c.Inputs, inputs}, {"output", c.graphOutputs, &c.Outputs, outputs}} {
		for _, t := range list.hidden {
			k := slices.IndexFunc(*list.own, func(o TensorConfig) bool { return o.Name == t.Name })
			if k >= 0 && !list.told {
				return d.failAt(value{at: v.at}, "sequence_batching", "%q is an %s of the model, too; want it in one place", t.Name, list.what)
			}
			if k >= 0 {
				*list.own = slices.Delete(*list.own, k, k+1)
			}
		}
		*list.own = append(*list.own, list.hidden...)
	}

	if err := c.Sequence.Check(tensorsOf(c.Inputs), tensorsOf(c.Outputs)); err != nil {
		return d.failAt(value{at: v.at}, "sequence_batching", "%v", err)
	}
	return nil
}

func tensorsOf(list []TensorConfig) (all []model.Tensor) {
	for i := range list {
		all = append(all, list[i].Tensor)
	}
	return all
}
