package repo

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"downbeat.dev/core/model"
)

// TensorConfig is one ModelInput or ModelOutput.
type TensorConfig struct {
	model.Tensor          // for clients, without the batch dimension
	Reshape       []int64 // the graph's shape if it differs from Shape, else nil
	LabelFilename string  // outputs only
	Optional      bool    // inputs only: requests may leave it out
	Format        string  // inputs only: FORMAT_NHWC, FORMAT_NCHW, or another if nothing is said
}

func (d *decoder) readTensor(out *[]TensorConfig, what string) func(value) error {
	return func(v value) error {
		if len(*out) == tensorsMax {
			return d.failAt(v, what, "a model may have at most %d", tensorsMax)
		}
		var t TensorConfig
		var reshaped bool

		r := rules{
			"name":                    {read: d.readText(&t.Name)},
			"data_type":               {read: d.readDatatype(&t.Datatype)},
			"dims":                    {read: d.openDim(&t.Shape, what+".dims"), repeated: true},
			"reshape":                 {read: d.readReshape(&t.Reshape, &reshaped, what)},
			"is_shape_tensor":         {read: d.mustBeFalse("shape tensors are not supported")},
			"is_non_linear_format_io": {read: d.mustBeFalse("only linear formats are supported")},
		}

		// Triton's inputs and outputs have different fields; a field of the other kind is unknown.
		if what == "input" {
			r["format"] = rule{read: d.readEnum(&t.Format, "FORMAT_NONE", "FORMAT_NHWC", "FORMAT_NCHW")}
			r["allow_ragged_batch"] = rule{read: d.mustBeFalse("ragged batches are not supported")}
			r["optional"] = rule{read: func(v value) error {
				if t.Optional = isTrue(v); t.Optional {
					return nil
				}
				return d.mustBeFalse("")(v)
			}}
		} else {
			r["label_filename"] = rule{read: d.fileName(&t.LabelFilename)}
		}

		if err := d.decodeFields(v.sub, what, r, v); err != nil {
			return err
		}
		if err := d.checkTensor(v, what, t, reshaped); err != nil {
			return err
		}

		// Clients address tensors by name, so names must differ.
		for _, o := range *out {
			if o.Name == t.Name {
				return d.failAt(v, what+".name", "%q is there twice", t.Name)
			}
		}
		*out = append(*out, t)
		return nil
	}
}

// checkTensor checks a tensor as a whole, after its fields have been read.
func (d *decoder) checkTensor(v value, what string, t TensorConfig, reshaped bool) error {
	switch {
	case t.Name == "":
		return d.failAt(value{at: v.at}, what+".name", "an %s needs a name", what)
	case t.Datatype == "":
		return d.failAt(value{at: v.at}, what+".data_type", "%q needs a data_type, such as TYPE_FP32", t.Name)
	case len(t.Shape) == 0:
		return d.failAt(value{at: v.at}, what+".dims", "%q needs dims, without the batch dimension", t.Name)
	case countElements(t.Shape) > elementsMax:
		return d.failAt(value{at: v.at}, what+".dims", "%q has more than %d elements", t.Name, elementsMax)
	case reshaped && t.IsOpen():
		return d.failAt(value{at: v.at}, what+".reshape", "%v of %q, whose dims %v are variable: not supported; want the graph's own dims", t.Reshape, t.Name, t.Shape)
	case reshaped && countElements(t.Shape) != countElements(t.Reshape):
		return d.failAt(value{at: v.at}, what+".reshape", "%v has %d elements, dims %v have %d", t.Reshape, countElements(t.Reshape), t.Shape, countElements(t.Shape))
	}
	return nil
}

// tensorNameMax bounds a tensor's name, in bytes, as messages do.
const tensorNameMax = 256

// checkTensors checks the number and the names of all tensors, also of those that the graph names and of a sequence's:
// one that no message can carry would keep all models of the backend from the scheduler.
func (c *Config) checkTensors() error {
	for _, of := range []struct {
		what string
		list []TensorConfig
	}{{"input", c.Inputs}, {"output", c.Outputs}} {
		if len(of.list) > tensorsMax {
			return fmt.Errorf("%d %ss with those of sequence_batching: want at most %d", len(of.list), of.what, tensorsMax)
		}
		for i := range of.list {
			if name := of.list[i].Name; name == "" || len(name) > tensorNameMax || !utf8.ValidString(name) {
				return fmt.Errorf("%s %q: a name of %d bytes: want 1 to %d of UTF-8", of.what, shortenText(name), len(name), tensorNameMax)
			}
		}
	}
	return nil
}

// countElements multiplies dims, and stops above elementsMax to avoid an overflow.
func countElements(shape []int64) int64 {
	n := int64(1)
	for _, s := range shape {
		// Two factors of at most elementsMax, 2^28, cannot overflow 64 bits.
		if n *= max(s, 1); n > elementsMax {
			return elementsMax + 1
		}
	}
	return n
}

func (d *decoder) readDatatype(out *model.Datatype) func(value) error {
	return func(v value) error {
		var names []string
		for _, t := range model.Datatypes() {
			name := configDatatype(t)
			if v.sub == nil && v.kind == tokenName && v.text == name {
				*out = t
				return nil
			}
			names = append(names, name)
		}

		// Sort the allowed values, so that the error is always the same.
		slices.Sort(names)
		return d.failAt(v, "data_type", "want one of %s", strings.Join(names, ", "))
	}
}

// configDatatype returns a datatype's name in config.pbtxt, which calls BYTES TYPE_STRING.
func configDatatype(t model.Datatype) string {
	if t == model.Bytes {
		return "TYPE_STRING"
	}
	return "TYPE_" + string(t)
}

func (d *decoder) readDim(out *[]int64, field string) func(value) error {
	return func(v value) error {
		n, err := d.int64(v)
		switch {
		case err == nil && n == -1 && !d.variable:
			return d.failAt(v, field, "a variable dimension is not supported here; want a fixed size from 1 to %d", elementsMax)
		case err != nil || n < 1 && n != -1 || n > elementsMax:
			return d.failAt(v, field, "want an integer from 1 to %d", elementsMax)
		case len(*out) == rankMax:
			return d.failAt(v, field, "a tensor may have at most %d dims", rankMax)
		}
		*out = append(*out, n)
		return nil
	}
}

// openDim is readDim for a tensor of the model, whose dimensions may be variable.
func (d *decoder) openDim(out *[]int64, field string) func(value) error {
	open := *d
	open.variable = true
	return open.readDim(out, field)
}

func (d *decoder) readReshape(out *[]int64, reshaped *bool, what string) func(value) error {
	return func(v value) error {
		// An empty shape is a reshape to a scalar; nil would mean no reshape.
		*reshaped, *out = true, []int64{}
		return d.decodeFields(v.sub, what+".reshape", rules{
			"shape": {read: d.readDim(out, what+".reshape.shape"), repeated: true},
		}, v)
	}
}
