//go:build cgo

package ort

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/model"
)

// packed runs a model with BYTES tensors: rows are unpacked into its own tensors, and packed again.
type packed struct {
	bound          // to the tensors below
	memory  []byte // of the tensors of a fixed size: mapped, because C keeps pointers to it
	in, out []part
	bad     []bool     // rows of the current batch that have no output
	ran     [][]string // of the current batch, by output
}

// part is one tensor of a packed model.
type part struct {
	*device.Tensor
	elements int                  // per row
	rows     []byte               // for a tensor of a fixed size: its part of packed.memory
	texts    []*onnx.StringTensor // for a BYTES tensor, [rows-1]

	// For an input of the current batch: the concatenated bytes of the elements, and the length of each.
	data    []byte
	lengths []uint32
}

func (l *loaded) bindPacked(m *device.Model) (*packed, error) {
	p := &packed{bad: make([]bool, m.BatchMax), ran: make([][]string, len(m.OutParts))}

	// Tensors of a fixed size share one mapping, each aligned as in a slot.
	size := 0
	for _, list := range [][]device.Tensor{m.InParts, m.OutParts} {
		for i := range list {
			size += (list[i].Bytes*m.BatchMax + device.Align - 1) &^ (device.Align - 1)
		}
	}

	var err error
	if p.memory, err = syscall.Mmap(-1, 0, max(size, 1), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE); err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}

	at := 0
	place := func(list []device.Tensor) (parts []part) {
		for i := range list {
			n := list[i].Bytes * m.BatchMax
			x := part{Tensor: &list[i], elements: 1, rows: p.memory[at : at+n], texts: make([]*onnx.StringTensor, m.BatchMax)}
			for _, d := range list[i].Shape {
				x.elements *= int(d)
			}
			parts = append(parts, x)
			at += (n + device.Align - 1) &^ (device.Align - 1)
		}
		return parts
	}

	p.in, p.out = place(m.InParts), place(m.OutParts)
	for n := 1; n <= m.BatchMax && err == nil; n++ {
		err = l.bindParts(m, p, n)
	}

	if err != nil {
		return nil, errors.Join(err, p.freePacked())
	}
	return p, nil
}

func (l *loaded) bindParts(m *device.Model, p *packed, n int) error {
	b, err := l.session.CreateIoBinding()
	if err != nil {
		return fmt.Errorf("create binding: %w", err)
	}
	p.rows = append(p.rows, b)

	for _, side := range []struct {
		bind  func(string, onnx.Value) error
		parts []part
	}{{b.BindInput, p.in}, {b.BindOutput, p.out}} {
		for i := range side.parts {
			if err := l.bindPart(p, side.bind, m, &side.parts[i], n); err != nil {
				return fmt.Errorf("bind %q: %w", side.parts[i].Name, err)
			}
		}
	}
	return nil
}

func (l *loaded) bindPart(p *packed, bind func(string, onnx.Value) error, m *device.Model, x *part, n int) error {
	if x.Datatype != model.Bytes {
		return p.bindTensor(l.session.strings, bind, m, x.Tensor, x.rows[:n*x.Bytes], n)
	}

	// ONNX Runtime owns the memory of strings, so Go memory cannot be bound (O3).
	var shape onnx.Shape
	if m.Batched {
		shape = append(shape, int64(n))
	}

	t, err := onnx.NewStringTensor(append(shape, x.Graph...))
	if err != nil {
		return err
	}

	x.texts[n-1], p.values = t, append(p.values, t)
	return bind(x.Name, t)
}

// freePacked frees the bindings and unmaps their memory.
func (p *packed) freePacked() error {
	return errors.Join(p.bound.freeBindings(), syscall.Munmap(p.memory))
}

// executePacked runs b. Invalid rows run as empty elements and are marked. A batch that fails runs again row by row,
// because one request's text, such as one that is not a number where the model needs one, must not fail the others.
func (l *loaded) executePacked(b device.Batch) error {
	p := l.packed
	p.startBatch()

	for row := range b.Rows {
		p.bad[row] = !p.unpackRow(b, row, row)
	}

	switch err := l.runPacked(b.Rows); {
	case err != nil && b.Rows == 1:
		return fmt.Errorf("run %s, batch of 1: %w", b.Model.Name, err)
	case err != nil:
		return l.executeApart(b, err)
	}

	for row := range b.Rows {
		p.packRow(b, row, row)
	}
	return nil
}

// executeApart runs the rows of a batch one by one, and marks those that fail; why is the error of the whole batch.
// If all fail, the model fails.
func (l *loaded) executeApart(b device.Batch, why error) error {
	p := l.packed
	ran := false
	for row := range b.Rows {
		p.startBatch()
		p.bad[0] = !p.unpackRow(b, row, 0)
		if l.runPacked(1) != nil {
			device.SetNoOutput(b.Slot.OutputRow(b.Model, 0, row))
			continue
		}
		p.packRow(b, row, 0)
		ran = true
	}

	if !ran {
		return fmt.Errorf("run %s, batch of %d: %w", b.Model.Name, b.Rows, why)
	}
	return nil
}

// startBatch clears the elements of the previous batch.
func (p *packed) startBatch() {
	for i := range p.in {
		p.in[i].data, p.in[i].lengths = p.in[i].data[:0], p.in[i].lengths[:0]
	}
}

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

// runPacked runs the n rows that are in the tensors of a fixed size and in next.
func (l *loaded) runPacked(n int) error {
	p := l.packed

	// ONNX Runtime owns strings: copy them in before a run and out after it (O3).
	for i := range p.in {
		if x := &p.in[i]; x.Datatype == model.Bytes {
			if err := l.session.strings.Fill(tensorPointer(x.texts[n-1]), x.data, x.lengths); err != nil {
				return fmt.Errorf("input %q: %w", x.Name, err)
			}
		}
	}

	if err := l.session.RunWithBinding(p.rows[n-1]); err != nil {
		return err
	}

	// The next run overwrites the strings of this one.
	for i := range p.out {
		if x := &p.out[i]; x.Datatype == model.Bytes {
			var err error
			if p.ran[i], err = x.texts[n-1].GetContents(); err != nil {
				return fmt.Errorf("output %q: %w", x.Name, err)
			}
		}
	}
	return nil
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
