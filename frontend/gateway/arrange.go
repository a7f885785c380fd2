package gateway

import (
	"slices"
	"strconv"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// arrangeInputs puts the inputs into the model's order and checks names, datatypes, shapes and sizes.
func (in *inference) arrangeInputs() *fault {
	want := in.model.Inputs
	if len(in.inputs) != len(want) {
		return invalidFault("model %q: inputs: %d tensors: must be %d: %s", in.model.Name, len(in.inputs), len(want), namesOf(want))
	}

	// Clients send inputs in any order; the payload has the model's order.
	ordered := sizedZero(in.room.ordered, len(want))

	// The first input determines how many rows the call has.
	in.rows = -1
	for i := range in.inputs {
		t := &in.inputs[i]
		if f := in.findInput(t); f != nil {
			return f
		}

		// Each input of the model is given once, in a shape that fits.
		k := slices.IndexFunc(want, func(w model.Tensor) bool { return w.Name == t.name })
		if k < 0 {
			return invalidFault("model %q: input %q: no such input; the model has %s", in.model.Name, t.name, namesOf(want))
		}
		if ordered[k].given {
			return invalidFault("model %q: input %q: given twice", in.model.Name, t.name)
		}
		if f := in.fitInput(t, want[k]); f != nil {
			return f
		}
		ordered[k] = *t
	}

	// Swap the two arrays, so that the next call can use both again.
	in.inputs, in.room.ordered = ordered, in.inputs
	return nil
}

// fitInput checks one input against the model's description of it.
func (in *inference) fitInput(t *input, want model.Tensor) *fault {
	if t.isPicture(&want) {
		return in.fitPictures(t, &want)
	}
	if t.datatype != "" && t.datatype != want.Datatype {
		return invalidFault("model %q: input %q: datatype %q: must be %s", in.model.Name, t.name, t.datatype, datatypesOf(&want))
	}

	rows, batched := rowsOf(t.shape, want.Shape)
	switch {
	case t.datatype == "":
		return invalidFault("model %q: input %q: datatype: is missing: must be %s", in.model.Name, t.name, want.Datatype)
	case rows < 0:
		return invalidFault("model %q: input %q: shape %v: must be %v", in.model.Name, t.name, t.shape, modelShape(in.model, &want))
	case rows < 1 || rows > rowsMax:
		return invalidFault("model %q: input %q: shape %v: %d rows: must be within 1 and %d", in.model.Name, t.name, t.shape, rows, rowsMax)
	case in.rows >= 0 && int(rows) != in.rows:
		return invalidFault("model %q: input %q: shape %v: %d rows: the other inputs have %d", in.model.Name, t.name, t.shape, rows, in.rows)
	}

	// If one input has a batch dimension, the outputs have one too.
	in.rows, in.batched = int(rows), in.batched || batched
	if !t.given && !want.IsEmpty() {
		return invalidFault("model %q: input %q: has no data", in.model.Name, t.name)
	}
	return in.fitData(t, want)
}

// fitData checks that an input has as many bytes as its shape and datatype require.
func (in *inference) fitData(t *input, want model.Tensor) *fault {
	if !want.Varies() {
		if size := want.RowBytes(); t.bytes() != size*in.rows {
			return invalidFault("model %q: input %q: %d bytes of data: shape %v of %s takes %d", in.model.Name, t.name, t.bytes(), t.shape, t.datatype, size*in.rows)
		}
		return nil
	}

	// Texts differ in length, so the shape determines only their count.
	got, ok := model.CountTexts(t.raw)
	if !ok {
		return invalidFault("model %q: input %q: BYTES data is cut: each element must be a 4-byte little-endian length and that many bytes", in.model.Name, t.name)
	}
	if n := in.rows * want.RowElements(); got != n {
		return invalidFault("model %q: input %q: %d elements of data: shape %v takes %d", in.model.Name, t.name, got, t.shape, n)
	}
	return nil
}

// datatypesOf names the datatypes that a client may use for an input.
func datatypesOf(want *model.Tensor) string {
	if want.Picture == nil {
		return string(want.Datatype)
	}
	return string(want.Datatype) + ", or BYTES with a JPEG or a PNG for each row"
}

// rowsOf reads a client's shape. It is the model's shape with a batch dimension in front, or the model's own shape,
// which means one row. -1: neither.
func rowsOf(shape, want []int64) (rows int64, batched bool) {
	switch {
	case len(shape) == len(want)+1 && slices.Equal(shape[1:], want):
		return max(shape[0], 0), true // a negative number of rows is refused like none
	case slices.Equal(shape, want):
		return 1, false
	}
	return -1, false
}

// modelShape returns a tensor's shape for metadata: with a batch dimension of any size if the model has one.
func modelShape(m *frontend.Model, t *model.Tensor) []int64 {
	if m.Unbatched {
		return t.Shape
	}
	return batchShape(t.Shape, -1)
}

// batchShape returns shape with a batch dimension of n rows in front.
func batchShape(shape []int64, n int64) []int64 { return append([]int64{n}, shape...) }

func namesOf(ts []model.Tensor) string {
	text := ""
	for i, t := range ts {
		if i > 0 {
			text += ", "
		}
		text += strconv.Quote(t.Name)
	}
	return text
}

// chooseOutputs resolves the requested outputs; none requested means all.
func (in *inference) chooseOutputs() *fault {
	have := in.model.Outputs

	// Without a list the client asks for every output.
	if len(in.outputs) == 0 {
		in.outputs = sizedZero(in.outputs, len(have))
		for k := range have {
			in.outputs[k] = output{name: have[k].Name, index: k, binary: in.binary}
		}
		return nil
	}

	for i := range in.outputs {
		o := &in.outputs[i]
		o.index = slices.IndexFunc(have, func(t model.Tensor) bool { return t.Name == o.name })
		if o.index < 0 {
			return invalidFault("model %q: output %q: no such output; the model has %s", in.model.Name, o.name, namesOf(have))
		}

		if !o.chosen {
			o.binary = in.binary
		}
		if o.classes > 0 && have[o.index].Varies() {
			return invalidFault("model %q: output %q: classification: a BYTES tensor has no classes", in.model.Name, o.name)
		}

		if f := in.findOutput(o, &have[o.index]); f != nil {
			return f
		}

		// The list is short (tensorsMax), so a search needs no map.
		for _, other := range in.outputs[:i] {
			if other.name == o.name {
				return invalidFault("model %q: output %q: requested twice", in.model.Name, o.name)
			}
		}
	}
	return nil
}
