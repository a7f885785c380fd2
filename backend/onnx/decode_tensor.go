package onnx

import (
	"encoding/binary"
	"fmt"
)

// typed holds the data fields of a TensorProto other than raw_data.
type typed struct {
	floats  []byte // float_data, 4 bytes each
	doubles []byte // double_data, 8 bytes each
	int32s  []int64
	int64s  []int64
	uint64s []int64
}

func (d *decoder) decodeTensor(b []byte) (Tensor, error) {
	var t Tensor
	var data typed

	err := d.eachField(b, func(w wireField) (err error) {
		// TensorProto: 1 dims, 2 data_type, 4 float_data, 5 int32_data, 6 string_data, 7 int64_data, 8 name, 9
		// raw_data, 10 double_data, 11 uint64_data, 14 data_location (1: another file).
		var n int64
		switch w.number {
		case 1:
			t.Dims, err = appendInts(t.Dims, w)
		case 2:
			err = d.setInt(&n, w)
			t.Type = DataType(n)
		case 4:
			data.floats, err = appendFixed(data.floats, w, 4)
		case 5:
			data.int32s, err = appendInts(data.int32s, w)
		case 6:
			err = addPart(d, &t.Strings, w, d.takeBytes)
		case 7:
			data.int64s, err = appendInts(data.int64s, w)
		case 8:
			err = d.setText(&t.Name, w)
		case 9:
			t.Raw, err = d.takePart(w)
		case 10:
			data.doubles, err = appendFixed(data.doubles, w, 8)
		case 11:
			data.uint64s, err = appendInts(data.uint64s, w)
		case 14:
			err = d.setInt(&n, w)
			t.External = n == 1
		}
		return err
	})

	if err == nil {
		err = t.settleData(&data)
	}
	if err != nil {
		err = fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	return t, err
}

// settleData converts typed data to Raw and checks O2.
func (t *Tensor) settleData(data *typed) error {
	n := t.Len()

	switch {
	case n < 0:
		return fmt.Errorf("dims %v: want sizes of at least 0 and a product of at most %d", t.Dims, int64(elementsMax))
	case t.Type <= Undefined || t.Type > typeLast:
		return fmt.Errorf("data_type %d: want 1 to %d", t.Type, typeLast)
	case t.External:
		t.Raw, t.Strings = nil, nil
		return nil
	case t.Type == String:
		t.Raw = nil
		if int64(len(t.Strings)) != n {
			return fmt.Errorf("%d strings: want %d for dims %v", len(t.Strings), n, t.Dims)
		}
		return nil
	}

	// A tensor's numbers are in its raw bytes or in the list of its type; from here on they are raw bytes.
	t.Strings = nil
	if len(t.Raw) == 0 {
		t.Raw = data.layRaw(t.Type)
	}

	if want := t.Type.Bytes(n); int64(len(t.Raw)) != want {
		return fmt.Errorf("%d bytes of data: want %d for dims %v of %v", len(t.Raw), want, t.Dims, t.Type)
	}
	return nil
}

// layRaw converts typed data to the layout of raw_data: TensorProto defines which field holds which type.
func (data *typed) layRaw(t DataType) []byte {
	switch t {
	case Float, Complex64:
		return data.floats
	case Double, Complex128:
		return data.doubles
	case Int64:
		return packInts(data.int64s, 8)
	case Uint64:
		return packInts(data.uint64s, 8)
	case Uint32:
		return packInts(data.uint64s, 4)
	case Uint4, Int4, Float4: // already two to a byte
		return packInts(data.int32s, 1)
	}
	return packInts(data.int32s, t.Bytes(1))
}

// packInts writes the low size bytes of each number.
func packInts(list []int64, size int64) []byte {
	out := make([]byte, 0, int64(len(list))*size)
	for _, v := range list {
		switch size {
		case 1:
			out = append(out, byte(v))
		case 2:
			out = binary.LittleEndian.AppendUint16(out, uint16(v))
		case 4:
			out = binary.LittleEndian.AppendUint32(out, uint32(v))
		default:
			out = binary.LittleEndian.AppendUint64(out, uint64(v))
		}
	}
	return out
}
