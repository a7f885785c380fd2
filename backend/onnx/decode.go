package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"google.golang.org/protobuf/encoding/protowire"
)

// Limits on what a file can make us allocate.
const (
	FileBytesMax = 1<<31 - 1 // protobuf's own
	partsMax     = 1 << 18   // nodes, attributes, tensors, values, dims and strings of one model
	nestingMax   = 16        // graphs within attributes
)

// Read reads a model file. The error names the file and says what is wrong with it.
func Read(path string) (*Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
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
	d := &decoder{left: partsMax}
	m, err := d.model(b)
	if err != nil {
		return nil, fmt.Errorf("not a valid ONNX model: %w", err)
	}
	return m, nil
}

// decoder counts down the parts that one model may still have.
type decoder struct {
	left    int
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

// each calls f for every field of a message.
func (d *decoder) each(b []byte, f func(wireField) error) error {
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

// part takes the content of a sub-message or string and charges it to the limit.
func (d *decoder) part(w wireField) ([]byte, error) {
	if w.kind != protowire.BytesType {
		return nil, fmt.Errorf("field %d: %w", w.number, errKind)
	}
	if d.left--; d.left < 0 {
		return nil, fmt.Errorf("more than %d parts", partsMax)
	}
	return w.bytes, nil
}

// setText, setInt: scalar fields.
func (d *decoder) setText(out *string, w wireField) error {
	b, err := d.part(w)
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

func (d *decoder) model(b []byte) (*Model, error) {
	m := &Model{}
	err := d.each(b, func(w wireField) (err error) {
		switch w.number {
		case 1:
			return d.setInt(&m.IRVersion, w)
		case 2:
			return d.setText(&m.Producer, w)
		case 7:
			if b, err = d.part(w); err == nil {
				m.Graph, err = d.graph(b)
			}
			return err
		case 8:
			if b, err = d.part(w); err == nil {
				var o Opset
				o, err = d.opset(b)
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

func (d *decoder) opset(b []byte) (o Opset, err error) {
	err = d.each(b, func(w wireField) error {
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

func (d *decoder) graph(b []byte) (*Graph, error) {
	if d.nesting++; d.nesting > nestingMax {
		return nil, fmt.Errorf("graphs nest deeper than %d", nestingMax)
	}
	defer func() { d.nesting-- }()
	g := &Graph{}
	err := d.each(b, func(w wireField) error {
		switch w.number {
		case 1:
			return add(d, &g.Nodes, w, d.node)
		case 2:
			return d.setText(&g.Name, w)
		case 5:
			return add(d, &g.Initializers, w, d.tensor)
		case 11:
			return add(d, &g.Inputs, w, d.value)
		case 12:
			return add(d, &g.Outputs, w, d.value)
		case 13:
			return add(d, &g.Values, w, d.value)
		}
		return nil
	})
	return g, err
}

// add decodes one sub-message of a repeated field.
func add[T any](d *decoder, out *[]T, w wireField, decode func([]byte) (T, error)) error {
	b, err := d.part(w)
	if err != nil {
		return err
	}
	v, err := decode(b)
	*out = append(*out, v)
	return err
}

func (d *decoder) text(b []byte) (string, error)  { return string(b), nil }
func (d *decoder) bytes(b []byte) ([]byte, error) { return b, nil }

func (d *decoder) node(b []byte) (n Node, err error) {
	err = d.each(b, func(w wireField) error {
		switch w.number {
		case 1:
			return add(d, &n.Inputs, w, d.text)
		case 2:
			return add(d, &n.Outputs, w, d.text)
		case 3:
			return d.setText(&n.Name, w)
		case 4:
			return d.setText(&n.Op, w)
		case 5:
			return add(d, &n.Attrs, w, d.attr)
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

func (d *decoder) attr(b []byte) (a Attr, err error) {
	var kind int64
	err = d.each(b, func(w wireField) (err error) {
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
			a.S, err = d.part(w)
		case 5:
			var t []Tensor
			if err = add(d, &t, w, d.tensor); err == nil {
				a.T = &t[0]
			}
		case 6:
			var g []*Graph
			if err = add(d, &g, w, d.graph); err == nil {
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
		err = add(d, &a.Strings, w, d.bytes)
	case 10:
		err = add(d, &a.Tensors, w, d.tensor)
	case 11:
		err = add(d, &a.Graphs, w, d.graph)
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
	return AttrInt
}

func (d *decoder) value(b []byte) (v Value, err error) {
	err = d.each(b, func(w wireField) error {
		switch w.number {
		case 1:
			return d.setText(&v.Name, w)
		case 2:
			b, err := d.part(w)
			if err != nil {
				return err
			}
			return d.each(b, func(w wireField) error {
				if w.number != 1 { // sequences, maps and the like stay Undefined
					return nil
				}
				b, err := d.part(w)
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
	return d.each(b, func(w wireField) error {
		switch w.number {
		case 1:
			var t int64
			err := d.setInt(&t, w)
			v.Type = DataType(t)
			return err
		case 2:
			b, err := d.part(w)
			if err != nil {
				return err
			}
			v.Dims = []Dim{}
			return d.each(b, func(w wireField) error {
				if w.number != 1 {
					return nil
				}
				return add(d, &v.Dims, w, d.dim)
			})
		}
		return nil
	})
}

func (d *decoder) dim(b []byte) (Dim, error) {
	v := Dim{Size: -1}
	err := d.each(b, func(w wireField) error {
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
	if v.Size < 0 {
		v.Size = -1
	}
	return v, err
}
