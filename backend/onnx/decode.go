package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// Limits on what a file can make us allocate.
const (
	FileBytesMax = 1<<31 - 1 // protobuf's own
	partsMax     = 1 << 18   // nodes, attributes, tensors, values, dims and strings of one model
	nestingMax   = 16        // graphs within attributes

	// Parts may be empty: two bytes of a file that become a tensor of a hundred. So what all of them take is bounded,
	// in bytes for each byte of the file and besides. Growing slices take about 2.5 times as much.
	partsPerByte = 20
	partsFixed   = 64 << 10
)

// Read reads a model file. The error names the file and says what is wrong with it.
func Read(path string) (*Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	// The size is known before memory is taken for it.
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > FileBytesMax {
		return nil, fmt.Errorf("%s: want a regular file of at most %d bytes", path, FileBytesMax)
	}

	b := make([]byte, info.Size())
	if _, err := io.ReadFull(f, b); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}

	m, err := Unmarshal(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Unmarshal decodes a ModelProto. The model keeps parts of b: do not write to b afterwards.
func Unmarshal(b []byte) (*Model, error) {
	d := &decoder{left: partsMax, room: partsPerByte*len(b) + partsFixed}
	m, err := d.decodeModel(b)
	if err != nil {
		return nil, fmt.Errorf("not a valid ONNX model: %w", err)
	}
	return m, nil
}

// decoder counts down the parts that one model may still have, and what they may take.
type decoder struct {
	left    int
	room    int // bytes
	nesting int
}

// wireField is one field as it lies in the file: num holds a varint or fixed value, bytes the rest.
type wireField struct {
	number protowire.Number
	kind   protowire.Type
	num    uint64
	bytes  []byte
}

var errKind = errors.New("a field has the wrong wire type")

// eachField calls f for every field of a message.
func (d *decoder) eachField(b []byte, f func(wireField) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]

		w := wireField{number: number, kind: kind}
		switch kind {
		case protowire.VarintType:
			w.num, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			w.num = uint64(v)
		case protowire.Fixed64Type:
			w.num, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			w.bytes, n = protowire.ConsumeBytes(b)
		default:
			// ONNX has no groups, but protobuf asks readers to skip them.
			n = protowire.ConsumeFieldValue(number, kind, b)
		}

		if n < 0 {
			return protowire.ParseError(n)
		}

		b = b[n:]
		if err := f(w); err != nil {
			return err
		}
	}
	return nil
}

// takePart takes the content of a sub-message or string and charges it to the limit.
func (d *decoder) takePart(w wireField) ([]byte, error) {
	if w.kind != protowire.BytesType {
		return nil, fmt.Errorf("field %d: %w", w.number, errKind)
	}

	// An empty part takes two bytes of a file, and much more of ours.
	if d.left--; d.left < 0 {
		return nil, fmt.Errorf("more than %d parts", partsMax)
	}
	return w.bytes, nil
}

// setText, setInt: scalar fields.
func (d *decoder) setText(out *string, w wireField) error {
	b, err := d.takePart(w)
	*out = string(b)
	return err
}

func (d *decoder) setInt(out *int64, w wireField) error {
	if w.kind != protowire.VarintType {
		return fmt.Errorf("field %d: %w", w.number, errKind)
	}
	*out = int64(w.num)
	return nil
}

// appendInts reads repeated varints, packed or not.
func appendInts(out []int64, w wireField) ([]int64, error) {
	switch w.kind {
	case protowire.VarintType:
		return append(out, int64(w.num)), nil
	case protowire.BytesType:
		// Packed numbers stand one after another, without tags.
		for b := w.bytes; len(b) > 0; {
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return out, protowire.ParseError(n)
			}
			out, b = append(out, int64(v)), b[n:]
		}
		return out, nil
	}
	return out, fmt.Errorf("field %d: %w", w.number, errKind)
}

// appendFixed reads repeated 4- or 8-byte values, packed or not, as little-endian bytes.
func appendFixed(out []byte, w wireField, size int) ([]byte, error) {
	switch {
	case w.kind == protowire.Fixed32Type && size == 4:
		return binary.LittleEndian.AppendUint32(out, uint32(w.num)), nil
	case w.kind == protowire.Fixed64Type && size == 8:
		return binary.LittleEndian.AppendUint64(out, w.num), nil
	case w.kind == protowire.BytesType && len(w.bytes)%size == 0:
		return append(out, w.bytes...), nil
	}
	return out, fmt.Errorf("field %d: %w", w.number, errKind)
}

func (d *decoder) decodeModel(b []byte) (*Model, error) {
	m := &Model{}

	err := d.eachField(b, func(w wireField) (err error) {
		// ModelProto: 1 ir_version, 2 producer_name, 7 graph, 8 opset_import.
		switch w.number {
		case 1:
			return d.setInt(&m.IRVersion, w)
		case 2:
			return d.setText(&m.Producer, w)
		case 7:
			if b, err = d.takePart(w); err == nil {
				m.Graph, err = d.decodeGraph(b)
			}
			return err
		case 8:
			if b, err = d.takePart(w); err == nil {
				var o Opset
				o, err = d.decodeOpset(b)
				m.Opsets = append(m.Opsets, o)
			}
			return err
		}
		return nil
	})

	switch {
	case err != nil:
		return nil, err
	case m.Graph == nil:
		return nil, errors.New("it holds no graph")
	case len(m.Opsets) == 0:
		return nil, errors.New("it imports no operator set")
	}
	return m, nil
}

func (d *decoder) decodeOpset(b []byte) (o Opset, err error) {
	err = d.eachField(b, func(w wireField) error {
		// OperatorSetIdProto: 1 domain, 2 version.
		switch w.number {
		case 1:
			return d.setText(&o.Domain, w)
		case 2:
			return d.setInt(&o.Version, w)
		}
		return nil
	})
	return o, err
}

func (d *decoder) decodeGraph(b []byte) (*Graph, error) {
	// Graphs hold nodes whose attributes hold graphs: a file of some bytes could nest without end.
	if d.nesting++; d.nesting > nestingMax {
		return nil, fmt.Errorf("graphs nest deeper than %d", nestingMax)
	}
	defer func() { d.nesting-- }()

	g := &Graph{}
	if err := d.chargeBytes(unsafe.Sizeof(*g)); err != nil {
		return nil, err
	}

	err := d.eachField(b, func(w wireField) error {
		// GraphProto: 1 node, 2 name, 5 initializer, 11 input, 12 output, 13 value_info.
		switch w.number {
		case 1:
			return addPart(d, &g.Nodes, w, d.decodeNode)
		case 2:
			return d.setText(&g.Name, w)
		case 5:
			return addPart(d, &g.Initializers, w, d.decodeTensor)
		case 11:
			return addPart(d, &g.Inputs, w, d.decodeValue)
		case 12:
			return addPart(d, &g.Outputs, w, d.decodeValue)
		case 13:
			return addPart(d, &g.Values, w, d.decodeValue)
		}
		return nil
	})
	return g, err
}

// addPart decodes one sub-message of a repeated field.
func addPart[T any](d *decoder, out *[]T, w wireField, decode func([]byte) (T, error)) error {
	b, err := d.takePart(w)
	if err != nil {
		return err
	}

	v, err := decode(b)
	if err != nil {
		return err
	}

	*out = append(*out, v)
	return d.chargeBytes(unsafe.Sizeof(v))
}

// chargeBytes takes the bytes of one part off the room that is left.
func (d *decoder) chargeBytes(bytes uintptr) error {
	if d.room -= int(bytes); d.room < 0 {
		return errors.New("its parts are too many for its bytes: most of them are empty")
	}
	return nil
}

func (d *decoder) takeText(b []byte) (string, error)  { return string(b), nil }
func (d *decoder) takeBytes(b []byte) ([]byte, error) { return b, nil }

func (d *decoder) decodeNode(b []byte) (n Node, err error) {
	err = d.eachField(b, func(w wireField) error {
		// NodeProto: 1 input, 2 output, 3 name, 4 op_type, 5 attribute, 7 domain.
		switch w.number {
		case 1:
			return addPart(d, &n.Inputs, w, d.takeText)
		case 2:
			return addPart(d, &n.Outputs, w, d.takeText)
		case 3:
			return d.setText(&n.Name, w)
		case 4:
			return d.setText(&n.Op, w)
		case 5:
			return addPart(d, &n.Attrs, w, d.decodeAttr)
		case 7:
			return d.setText(&n.Domain, w)
		}
		return nil
	})

	if err == nil && n.Op == "" {
		err = fmt.Errorf("node %q: op_type is empty", n.Name)
	}
	return n, err
}

func (d *decoder) decodeAttr(b []byte) (a Attr, err error) {
	var kind int64

	err = d.eachField(b, func(w wireField) (err error) {
		// AttributeProto: 1 name, 2 f, 3 i, 4 s, 5 t, 6 g, 20 type, 21 ref_attr_name; attrList reads the
		// repeated ones.
		switch w.number {
		case 1:
			return d.setText(&a.Name, w)
		case 2:
			if w.kind != protowire.Fixed32Type {
				return fmt.Errorf("field %d: %w", w.number, errKind)
			}
			a.F = math.Float32frombits(uint32(w.num))
		case 3:
			return d.setInt(&a.I, w)
		case 4:
			a.S, err = d.takePart(w)
		case 5:
			// A list of one, so that the part is charged as any other.
			var t []Tensor
			if err = addPart(d, &t, w, d.decodeTensor); err == nil {
				a.T = &t[0]
			}
		case 6:
			var g []*Graph
			if err = addPart(d, &g, w, d.decodeGraph); err == nil {
				a.G = g[0]
			}
		case 20:
			return d.setInt(&kind, w)
		case 21:
			return d.setText(&a.Ref, w)
		default:
			return d.attrList(&a, w)
		}
		return err
	})

	// Files from before attributes had a type are told by which value is there.
	a.Kind = AttrKind(kind)
	if err == nil && a.Kind == AttrUndefined && a.Ref == "" {
		a.Kind = a.guessKind()
	}
	if err == nil && (a.Kind == AttrTensor && a.T == nil || a.Kind == AttrGraph && a.G == nil) {
		err = errors.New("the value is missing")
	}

	if err != nil {
		err = fmt.Errorf("attribute %q: %w", a.Name, err)
	}
	return a, err
}

// attrList reads the repeated fields of an attribute.
func (d *decoder) attrList(a *Attr, w wireField) (err error) {
	// AttributeProto: 7 floats, 8 ints, 9 strings, 10 tensors, 11 graphs.
	switch w.number {
	case 7:
		var raw []byte
		if raw, err = appendFixed(nil, w, 4); err == nil {
			for i := 0; i < len(raw); i += 4 {
				a.Floats = append(a.Floats, math.Float32frombits(binary.LittleEndian.Uint32(raw[i:])))
			}
		}

	case 8:
		a.Ints, err = appendInts(a.Ints, w)
	case 9:
		err = addPart(d, &a.Strings, w, d.takeBytes)
	case 10:
		err = addPart(d, &a.Tensors, w, d.decodeTensor)
	case 11:
		err = addPart(d, &a.Graphs, w, d.decodeGraph)
	}
	return err
}

// guessKind serves files older than IR version 3, which left the type out.
func (a *Attr) guessKind() AttrKind {
	switch {
	case a.T != nil:
		return AttrTensor
	case a.G != nil:
		return AttrGraph
	case a.Floats != nil:
		return AttrFloats
	case a.Ints != nil:
		return AttrInts
	case a.Strings != nil:
		return AttrStrings
	case a.S != nil:
		return AttrString
	case a.F != 0:
		return AttrFloat
	}

	// An integer of 0 looks as if it were not there.
	return AttrInt
}

func (d *decoder) decodeValue(b []byte) (v Value, err error) {
	err = d.eachField(b, func(w wireField) error {
		// ValueInfoProto: 1 name, 2 type, of whose kinds 1 is a tensor's.
		switch w.number {
		case 1:
			return d.setText(&v.Name, w)
		case 2:
			b, err := d.takePart(w)
			if err != nil {
				return err
			}
			return d.eachField(b, func(w wireField) error {
				if w.number != 1 { // sequences, maps and the like stay Undefined
					return nil
				}
				b, err := d.takePart(w)
				if err != nil {
					return err
				}
				return d.tensorType(&v, b)
			})
		}
		return nil
	})

	return v, err
}

func (d *decoder) tensorType(v *Value, b []byte) error {
	return d.eachField(b, func(w wireField) error {
		// TypeProto.Tensor: 1 elem_type, 2 shape, which holds dims in its field 1.
		switch w.number {
		case 1:
			var t int64
			err := d.setInt(&t, w)
			v.Type = DataType(t)
			return err

		case 2:
			b, err := d.takePart(w)
			if err != nil {
				return err
			}

			// A shape without dims is a scalar's; nil says that the file tells none.
			v.Dims = []Dim{}
			return d.eachField(b, func(w wireField) error {
				if w.number != 1 {
					return nil
				}
				return addPart(d, &v.Dims, w, d.decodeDim)
			})
		}
		return nil
	})
}

func (d *decoder) decodeDim(b []byte) (Dim, error) {
	// A dimension without either is one that is not known.
	v := Dim{Size: -1}
	err := d.eachField(b, func(w wireField) error {
		// A dimension has a size (1) or a name (2): of both the later counts, as for any oneof.
		switch w.number {
		case 1:
			v.Name = ""
			return d.setInt(&v.Size, w)
		case 2:
			v.Size = -1
			return d.setText(&v.Name, w)
		}
		return nil
	})

	// Every negative size means one that is not known.
	if v.Size < 0 {
		v.Size = -1
	}
	return v, err
}
