//go:build cgo

package ort

import (
	"errors"
	"fmt"
	"syscall"

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

// bindParts makes the binding for a batch of n, with the inputs and outputs that it packs.
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
	// One row that the model refuses must not fail the others.
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
