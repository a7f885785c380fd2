//go:build cgo

package ort

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/device"
)

// packed runs a model with BYTES tensors: rows are unpacked into tensors of its own, and packed again.
type packed struct {
	memory   []byte // of the tensors of a fixed size: mapped, since C keeps pointers to it
	in, out  []part
	bindings []*onnx.IoBinding // [rows-1]
	bad      []bool            // rows of the batch at work that have no output
	ran      [][]string        // of the batch at work, by output
}

// part is one tensor of a packed model.
type part struct {
	*device.Tensor
	elements int                  // of a row
	rows     []byte               // in packed.memory, of a tensor of a fixed size
	texts    []*onnx.StringTensor // of a BYTES tensor, [rows-1]
	next     []string             // of the batch at work, an input's
}

func (l *loaded) bindPacked(m *device.Model) (*packed, error) {
	p := &packed{bindings: make([]*onnx.IoBinding, m.BatchMax), bad: make([]bool, m.BatchMax), ran: make([][]string, len(m.OutParts))}
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
		p.bindings[n-1], err = l.bindParts(m, p, n)
	}
	if err != nil {
		return nil, errors.Join(err, p.free())
	}
	return p, nil
}

func (l *loaded) bindParts(m *device.Model, p *packed, n int) (*onnx.IoBinding, error) {
	b, err := l.session.CreateIoBinding()
	if err != nil {
		return nil, fmt.Errorf("create binding: %w", err)
	}
	for _, side := range []struct {
		bind  func(string, onnx.Value) error
		parts []part
	}{{b.BindInput, p.in}, {b.BindOutput, p.out}} {
		for i := range side.parts {
			if err := l.bindPart(side.bind, m, &side.parts[i], n); err != nil {
				return b, fmt.Errorf("bind %q: %w", side.parts[i].Name, err)
			}
		}
	}
	return b, nil
}

func (l *loaded) bindPart(bind func(string, onnx.Value) error, m *device.Model, x *part, n int) error {
	if x.Datatype != "BYTES" {
		return l.bindTensor(bind, m, x.Tensor, x.rows[:n*x.Bytes], n)
	}
	var shape onnx.Shape
	if m.Batched {
		shape = append(shape, int64(n))
	}
	t, err := onnx.NewStringTensor(append(shape, x.Graph...))
	if err != nil {
		return err
	}
	x.texts[n-1], l.values = t, append(l.values, t)
	return bind(x.Name, t)
}

func (p *packed) free() error {
	var errs []error
	for _, b := range p.bindings {
		if b != nil {
			errs = append(errs, b.Destroy())
		}
	}
	return errors.Join(append(errs, syscall.Munmap(p.memory))...)
}

// warmUpPacked runs the smallest and the largest batch, of empty elements.
func (l *loaded) warmUpPacked(m *device.Model) error {
	if l.packed == nil {
		return nil
	}
	for _, n := range []int{m.BatchMax, 1} {
		for i := range l.packed.in {
			l.packed.in[i].next = make([]string, n*l.packed.in[i].elements)
		}
		if err := l.runPacked(n); err != nil {
			return fmt.Errorf("run a batch of %d on empty elements: %w", n, err)
		}
	}
	return nil
}

// executePacked runs b. Rows that make no sense are run as empty elements and marked.
func (l *loaded) executePacked(b device.Batch) error {
	p := l.packed
	for i := range p.in {
		p.in[i].next = p.in[i].next[:0]
	}
	for row := range b.Rows {
		payload, ok := device.Packed(b.Slot.InputRow(b.Model, 0, row))
		p.bad[row] = !ok || !p.unpack(payload, row)
		if p.bad[row] {
			p.blank(row)
		}
	}
	if err := l.runPacked(b.Rows); err != nil {
		return fmt.Errorf("run %s, batch of %d: %w", b.Model.Name, b.Rows, err)
	}
	for row := range b.Rows {
		out := b.Slot.OutputRow(b.Model, 0, row)
		if p.bad[row] || !p.pack(out, row) {
			device.SetNoOutput(out)
		}
	}
	return nil
}

// runPacked runs the n rows that lie in the tensors of a fixed size and in next.
func (l *loaded) runPacked(n int) error {
	p := l.packed
	for i := range p.in {
		if x := &p.in[i]; x.Datatype == "BYTES" {
			if err := x.texts[n-1].SetContents(x.next); err != nil {
				return fmt.Errorf("input %q: %w", x.Name, err)
			}
		}
	}
	if err := l.session.RunWithBinding(p.bindings[n-1]); err != nil {
		return err
	}
	for i := range p.out {
		if x := &p.out[i]; x.Datatype == "BYTES" {
			var err error
			if p.ran[i], err = x.texts[n-1].GetContents(); err != nil {
				return fmt.Errorf("output %q: %w", x.Name, err)
			}
		}
	}
	return nil
}

// unpack brings a payload to the row of every input. False: it makes no sense. The binding hands
// strings to C, so that an element with a zero byte would be cut: it makes none either.
func (p *packed) unpack(payload []byte, row int) bool {
	for i := range p.in {
		x := &p.in[i]
		if x.Datatype != "BYTES" {
			if len(payload) < x.Bytes {
				return false
			}
			copy(x.rows[row*x.Bytes:][:x.Bytes], payload)
			payload = payload[x.Bytes:]
			continue
		}
		for range x.elements {
			if len(payload) < 4 || uint64(binary.LittleEndian.Uint32(payload)) > uint64(len(payload)-4) {
				return false
			}
			n := int(binary.LittleEndian.Uint32(payload))
			text := payload[4:][:n]
			if bytes.IndexByte(text, 0) >= 0 {
				return false
			}
			x.next = append(x.next, string(text))
			payload = payload[4+n:]
		}
	}
	return len(payload) == 0
}

// blank makes every input's row empty, whatever unpack has left of it.
func (p *packed) blank(row int) {
	for i := range p.in {
		x := &p.in[i]
		if x.Datatype != "BYTES" {
			clear(x.rows[row*x.Bytes:][:x.Bytes])
			continue
		}
		x.next = x.next[:min(len(x.next), row*x.elements)]
		for len(x.next) < (row+1)*x.elements {
			x.next = append(x.next, "")
		}
	}
}

// pack brings the row of every output to a payload. False: there is no room for it.
func (p *packed) pack(out []byte, row int) bool {
	size := 0
	for i := range p.out {
		x := &p.out[i]
		size += x.Bytes
		for _, s := range p.texts(i, row) {
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
		for _, s := range p.texts(i, row) {
			to = append(binary.LittleEndian.AppendUint32(to, uint32(len(s))), s...)
		}
	}
	return true
}

// texts are the elements of a row of output i; none of a tensor of a fixed size.
func (p *packed) texts(i, row int) []string {
	if p.out[i].Datatype != "BYTES" {
		return nil
	}
	n := p.out[i].elements
	return p.ran[i][row*n:][:n]
}
