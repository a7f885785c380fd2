package onnx

import (
	"encoding/binary"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Marshal encodes m as a ModelProto. Equal models give equal bytes.
func (m *Model) Marshal() []byte {
	// The decoder's comments explain the field numbers.
	var b []byte
	b = appendInt(b, 1, m.IRVersion)
	b = appendText(b, 2, m.Producer)

	if m.Graph != nil {
		b = appendPart(b, 7, m.Graph.marshal())
	}

	for _, o := range m.Opsets {
		b = appendPart(b, 8, appendInt(appendText(nil, 1, o.Domain), 2, o.Version))
	}
	return b
}

func appendPart(b []byte, n protowire.Number, part []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), part)
}

// appendText omits an empty string, as protobuf does.
func appendText(b []byte, n protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return appendPart(b, n, []byte(s))
}

func appendInt(b []byte, n protowire.Number, v int64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
}

func appendPacked(b []byte, n protowire.Number, list []int64) []byte {
	if len(list) == 0 {
		return b
	}

	var p []byte
	for _, v := range list {
		p = protowire.AppendVarint(p, uint64(v))
	}
	return appendPart(b, n, p)
}

func (g *Graph) marshal() []byte {
	var b []byte
	for i := range g.Nodes {
		b = appendPart(b, 1, g.Nodes[i].marshal())
	}
	b = appendText(b, 2, g.Name)

	for i := range g.Initializers {
		b = appendPart(b, 5, g.Initializers[i].marshal())
	}

	b = appendValues(b, 11, g.Inputs)
	b = appendValues(b, 12, g.Outputs)
	return appendValues(b, 13, g.Values)
}

func appendValues(b []byte, n protowire.Number, list []Value) []byte {
	for i := range list {
		b = appendPart(b, n, list[i].marshal())
	}
	return b
}

func (n *Node) marshal() []byte {
	var b []byte
	for _, s := range n.Inputs {
		b = appendPart(b, 1, []byte(s)) // an empty name is an omitted input
	}
	for _, s := range n.Outputs {
		b = appendPart(b, 2, []byte(s))
	}

	b = appendText(b, 3, n.Name)
	b = appendText(b, 4, n.Op)

	for i := range n.Attrs {
		b = appendPart(b, 5, n.Attrs[i].marshal())
	}
	return appendText(b, 7, n.Domain)
}

func (a *Attr) marshal() []byte {
	// AttributeProto has one field for each type of value.
	b := appendText(nil, 1, a.Name)
	switch a.Kind {
	case AttrFloat:
		b = protowire.AppendFixed32(protowire.AppendTag(b, 2, protowire.Fixed32Type), math.Float32bits(a.F))
	case AttrInt:
		b = appendInt(b, 3, a.I)
	case AttrString:
		b = appendPart(b, 4, a.S)
	case AttrTensor:
		b = appendPart(b, 5, a.T.marshal())
	case AttrGraph:
		b = appendPart(b, 6, a.G.marshal())
	case AttrFloats:
		var p []byte
		for _, f := range a.Floats {
			p = binary.LittleEndian.AppendUint32(p, math.Float32bits(f))
		}
		if p != nil {
			b = appendPart(b, 7, p)
		}
	case AttrInts:
		b = appendPacked(b, 8, a.Ints)
	case AttrStrings:
		for _, s := range a.Strings {
			b = appendPart(b, 9, s)
		}
	case AttrTensors:
		for i := range a.Tensors {
			b = appendPart(b, 10, a.Tensors[i].marshal())
		}
	case AttrGraphs:
		for _, g := range a.Graphs {
			b = appendPart(b, 11, g.marshal())
		}
	}

	// Readers use the type, not the field that is present.
	return appendText(appendInt(b, 20, int64(a.Kind)), 21, a.Ref)
}

func (t *Tensor) marshal() []byte {
	b := appendPacked(nil, 1, t.Dims)
	b = appendInt(b, 2, int64(t.Type))

	for _, s := range t.Strings {
		b = appendPart(b, 6, s)
	}

	b = appendText(b, 8, t.Name)

	// Numbers are written to raw_data, whichever field they were read from (O2).
	if len(t.Raw) > 0 {
		b = appendPart(b, 9, t.Raw)
	}

	if t.External {
		b = appendInt(b, 14, 1)
	}
	return b
}

func (v *Value) marshal() []byte {
	b := appendText(nil, 1, v.Name)
	if v.Type == Undefined {
		return b
	}

	tensor := appendInt(nil, 1, int64(v.Type))

	// An unknown shape is omitted; a scalar's shape is present and empty.
	if v.Dims != nil {
		var shape []byte
		for _, d := range v.Dims {
			var dim []byte
			if d.Size >= 0 {
				dim = appendInt(nil, 1, d.Size)
			} else {
				dim = appendText(nil, 2, d.Name)
			}
			shape = appendPart(shape, 1, dim)
		}
		tensor = appendPart(tensor, 2, shape)
	}

	return appendPart(b, 2, appendPart(nil, 1, tensor))
}
