package frontend

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"

	"downbeat.dev/core/model"
)

// Names from the vocabulary (package core/model) that this package's signatures use.
type (
	Datatype     = model.Datatype    // datatype of a tensor's elements, named as in the Open Inference Protocol
	Picture      = model.Picture     // how a JPEG or a PNG becomes a row of an input
	TensorInfo   = model.Tensor      // name, datatype, shape and labels of a model's tensor
	Reason       = model.Reason      // why a request got no output
	ModelInfo    = model.Info        // the scheduler's announcement of a model
	Floor        = model.Floor       // an accuracy floor of a family
	SequenceInfo = model.Sequence    // how requests of a model that keeps sequences follow one another
	Control      = model.Control     // an input that marks a step's place in its sequence
	ControlKind  = model.ControlKind // its meaning
	State        = model.State       // an output that is an input of the next step
)

var le = binary.LittleEndian

// Tensor is one input of a Buffer that NewInput made, or one output of a Result. Its elements are read and set in
// place, as Go numbers and strings. It is valid as long as the Buffer or the Result belongs to its owner. Errors name
// the tensor, the given and the allowed values, and wrap ErrInvalid.
type Tensor struct {
	info  *TensorInfo // nil: see err
	err   error
	data  []byte
	input *Buffer // nil: an output
	index int     // index in the model's inputs
	loose bool    // made by TensorOf
}

// NewInput returns a Buffer for one request to a model, in its newest ready version. Tensors of fixed size are
// undefined until they are set; BYTES tensors have empty elements. Errors are those of Buffer; for a model that the
// scheduler does not announce, or announces as not served, an *OutcomeError.
func (c *Client) NewInput(name string) (*Buffer, error) {
	m := c.Model(name, "")
	if m == nil {
		return nil, c.refuseUnknown(&Request{Model: name})
	}
	if m.isRefused() {
		return nil, m.refusal()
	}
	if m.shaped {
		return nil, fmt.Errorf("%w: model %q: its inputs have shapes of their own: want NewShapedInput", ErrInvalid, name)
	}
	return c.newInput(m)
}

// newInput makes a Buffer for one request to a model with fixed shapes.
func (c *Client) newInput(m *Model) (*Buffer, error) {
	// An unset text takes only the room of its length field.
	size := 0
	for i := range m.Inputs {
		if t := &m.Inputs[i]; t.Varies() {
			size += t.RowElements() * model.TextLengthBytes
		} else {
			size += t.RowBytes()
		}
	}
	b, err := c.Buffer(size)
	if err != nil {
		return nil, err
	}

	b.model = m
	if m.InputBytes < 0 {
		clear(b.Bytes()) // texts of length 0
	}
	return b, nil
}

// Tensor returns the input of a name, of a Buffer that NewInput made. If the model has no such input, the Tensor's
// methods return an error.
func (b *Buffer) Tensor(name string) Tensor {
	if b.model == nil {
		return Tensor{err: fmt.Errorf("%w: input %q: the buffer was not made by NewInput for a model", ErrInvalid, name)}
	}

	t := findTensor(b.model, "input", b.model.Inputs, b.Bytes(), name)
	t.input = b
	return t
}

// Output returns the output of a name. If the model has no such output, the Tensor's methods return an error.
func (r *Result) Output(name string) Tensor {
	if r.model == nil {
		return Tensor{err: fmt.Errorf("%w: output %q: the request got no output", ErrInvalid, name)}
	}
	return findTensor(r.model, "output", r.model.Outputs, r.Data, name)
}

// findTensor finds a tensor by name, and its bytes in a payload.
func findTensor(m *Model, kind string, tensors []TensorInfo, payload []byte, name string) Tensor {
	i := slices.IndexFunc(tensors, func(t TensorInfo) bool { return t.Name == name })
	if i < 0 {
		return Tensor{err: fmt.Errorf("%w: model %q: %s %q: no such tensor; the model has %s", ErrInvalid, m.Name, kind, name, tensorNames(tensors))}
	}
	start, end, ok := locateTensor(tensors, payload, i)
	if !ok {
		return Tensor{err: fmt.Errorf("%w: model %q: %s %q: %d bytes do not hold it", ErrInvalid, m.Name, kind, name, len(payload))}
	}
	return Tensor{info: &tensors[i], data: payload[start:end:end], index: i}
}

// locateTensor returns the start and end of a tensor in a payload: tensors lie one after another, and BYTES elements
// contain their lengths.
func locateTensor(tensors []TensorInfo, payload []byte, index int) (start, end int, ok bool) {
	// BYTES tensors vary in size, so all tensors before this one must be walked.
	for i := range tensors[:index+1] {
		t := &tensors[i]
		n := t.RowBytes()
		if t.Varies() {
			n = model.TextsBytes(payload[end:], t.RowElements())
		}
		if n < 0 || n > len(payload)-end {
			return 0, 0, false
		}
		start, end = end, end+n
	}
	return start, end, true
}

func tensorNames(tensors []TensorInfo) string {
	text := ""
	for i := range tensors {
		if i > 0 {
			text += ", "
		}
		text += strconv.Quote(tensors[i].Name)
	}
	return text
}

// Err returns why there is no such tensor; nil if there is.
func (t Tensor) Err() error { return t.err }

// Info returns the model's description of the tensor, which is shared and read-only; nil if Err is not.
func (t Tensor) Info() *TensorInfo { return t.info }

// Bytes returns the elements in wire format: little-endian, row-major; each BYTES element follows its length of 4
// bytes. Nil if Err is not. The bytes of an input of fixed size may be written to.
func (t Tensor) Bytes() []byte { return t.data }
