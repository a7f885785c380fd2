package onnx

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"
)

// Limits on the memory that a file can make the decoder allocate.
const (
	FileBytesMax = 1<<31 - 1 // protobuf's own limit
	partsMax     = 1 << 18   // nodes, attributes, tensors, values, dims and strings of one model
	nestingMax   = 16        // graphs within attributes

	// Parts may be empty: two bytes of a file can become a tensor of a hundred bytes. So the memory of all parts is
	// bounded, per byte of the file and by a constant. Growing slices take about 2.5 times as much.
	partsPerByte = 20
	partsFixed   = 64 << 10
)

// Read reads a model file. An error names the file and the cause.
func Read(path string) (*Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()

	// Check the size before allocating memory for it.
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
	// Graphs hold nodes whose attributes hold graphs: a small file could nest without end.
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

func (d *decoder) decodeValue(b []byte) (v Value, err error) {
	err = d.eachField(b, func(w wireField) error {
		// ValueInfoProto: 1 name, 2 type, whose kind 1 is a tensor.
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

			// A shape without dims is a scalar's; nil means that the file gives none.
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
	// A dimension without either is unknown.
	v := Dim{Size: -1}
	err := d.eachField(b, func(w wireField) error {
		// A dimension has a size (1) or a name (2): the later one counts, as for any oneof.
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

	// Every negative size means an unknown one.
	if v.Size < 0 {
		v.Size = -1
	}
	return v, err
}
