//go:build cgo

package ort

import (
	"encoding/binary"
	"unsafe"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
)

// unpackRow copies row of the slot to row at of the tensors, as empty elements if it is invalid, and returns whether
// it is valid.
func (p *packed) unpackRow(b device.Batch, row, at int) bool {
	payload, ok := device.Packed(b.Slot.InputRow(b.Model, 0, row))
	if ok && p.readRow(payload, at) {
		return true
	}

	p.blankRow(at)
	return false
}

// packRow copies row at of the tensors to row of the slot, or marks it.
func (p *packed) packRow(b device.Batch, row, at int) {
	out := b.Slot.OutputRow(b.Model, 0, row)
	if p.bad[at] || !p.writeRow(out, at) {
		device.SetNoOutput(out)
	}
}

// tensorPointer returns the OrtValue of a tensor: the single field of the binding's internals.
func tensorPointer(t *onnx.StringTensor) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(t.GetInternals()))
}

// readRow copies a payload to the row of every input. False: the payload is invalid.
func (p *packed) readRow(payload []byte, row int) bool {
	for i := range p.in {
		x := &p.in[i]
		if x.Datatype != model.Bytes {
			if len(payload) < x.Bytes {
				return false
			}
			copy(x.rows[row*x.Bytes:][:x.Bytes], payload)
			payload = payload[x.Bytes:]
			continue
		}

		// A text's length is accepted only if that many bytes are left.
		for range x.elements {
			if len(payload) < 4 || uint64(binary.LittleEndian.Uint32(payload)) > uint64(len(payload)-4) {
				return false
			}
			n := int(binary.LittleEndian.Uint32(payload))
			x.data, x.lengths = append(x.data, payload[4:][:n]...), append(x.lengths, uint32(n))
			payload = payload[4+n:]
		}
	}
	return len(payload) == 0
}

// blankRow makes every input's row empty, including parts that readRow has already written.
func (p *packed) blankRow(row int) {
	for i := range p.in {
		x := &p.in[i]
		if x.Datatype != model.Bytes {
			clear(x.rows[row*x.Bytes:][:x.Bytes])
			continue
		}

		// Keep the texts of earlier rows; remove those of this one.
		for len(x.lengths) > row*x.elements {
			last := len(x.lengths) - 1
			x.data = x.data[:len(x.data)-int(x.lengths[last])]
			x.lengths = x.lengths[:last]
		}
		x.lengths = append(x.lengths, make([]uint32, x.elements)...)
	}
}

// writeRow copies the row of every output to a payload. False: there is no room for it.
func (p *packed) writeRow(out []byte, row int) bool {
	// A row is written entirely or not at all, so compute its size first.
	size := 0
	for i := range p.out {
		x := &p.out[i]
		size += x.Bytes
		for _, s := range p.rowTexts(i, row) {
			size += 4 + len(s)
		}
	}

	to, err := device.SetPacked(out, size)
	if err != nil {
		return false
	}
	to = to[:0]

	for i := range p.out {
		x := &p.out[i]
		to = append(to, x.rows[row*x.Bytes:][:x.Bytes]...)
		for _, s := range p.rowTexts(i, row) {
			to = append(binary.LittleEndian.AppendUint32(to, uint32(len(s))), s...)
		}
	}
	return true
}

// rowTexts returns the elements of a row of output i; none for a tensor of a fixed size.
func (p *packed) rowTexts(i, row int) []string {
	if p.out[i].Datatype != model.Bytes {
		return nil
	}
	n := p.out[i].elements
	return p.ran[i][row*n:][:n]
}
