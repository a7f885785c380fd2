package onnx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

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
			// A list of one, so that the part is charged like any other.
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

	// In files from before attributes had a type, the value that is present determines it.
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

// guessKind determines the type of an attribute in files older than IR version 3, which have none.
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

	// An integer of 0 looks like an absent one.
	return AttrInt
}
