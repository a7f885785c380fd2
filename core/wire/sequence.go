package wire

import (
	"fmt"

	"downbeat.dev/core/model"
)

// sequenceOf writes a model's Sequence; an idle time of 0 means that it has none.
func (e *encoder) sequenceOf(m *model.Info) {
	s := m.Sequence
	if s == nil {
		e.u64(0)
		return
	}
	if s.Idle <= 0 {
		e.keepError(fmt.Errorf("%w: idle time of %s is %d ns, more than 0 is allowed", ErrMalformed, m.Name, s.Idle))
	}

	e.u64(uint64(s.Idle))
	e.putSmall("controls of "+m.Name, len(s.Controls), model.SequenceTensorsMax)
	for i := range s.Controls {
		c := &s.Controls[i]
		e.text("control of "+m.Name, c.Input, NameBytesMax)
		e.b = append(e.b, byte(c.Kind))
		e.putBytes("false of "+c.Input, c.False)
		e.putBytes("true of "+c.Input, c.True)
	}

	e.putSmall("states of "+m.Name, len(s.States), model.SequenceTensorsMax)
	for i := range s.States {
		x := &s.States[i]
		e.text("state of "+m.Name, x.Input, NameBytesMax)
		e.text("output of state "+x.Input, x.Output, NameBytesMax)
		e.putBytes("initial state of "+x.Input, x.Initial)
	}
}

// sequenceOf reads a Sequence. It refuses one that does not fit the tensors, so that no other code needs to check.
func (d *decoder) sequenceOf(m *model.Info) {
	idle := int64(d.u64())
	if idle == 0 || d.err != nil {
		return
	}
	if idle < 0 {
		d.keepError(fmt.Errorf("%w: idle time of %q is %d ns, more than 0 is allowed", ErrMalformed, m.Name, idle))
		return
	}

	// Counts are checked against the rest of the frame before any allocation.
	s := &model.Sequence{Idle: idle}
	for range d.readSmall("controls", model.SequenceTensorsMax, 7) {
		s.Controls = append(s.Controls, model.Control{Input: d.text("control", NameBytesMax), Kind: model.ControlKind(d.u8()), False: d.readBytes("false"), True: d.readBytes("true")})
	}
	for range d.readSmall("states", model.SequenceTensorsMax, 6) {
		s.States = append(s.States, model.State{Input: d.text("state", NameBytesMax), Output: d.text("output of state", NameBytesMax), Initial: d.readBytes("initial state")})
	}
	if d.err != nil {
		return
	}

	if err := s.Check(m.Inputs, m.Outputs); err != nil {
		d.keepError(fmt.Errorf("%w: sequence of model %q: %w", ErrMalformed, m.Name, err))
		return
	}
	m.Sequence = s
}

// putBytes writes a u16 length and the bytes.
func (e *encoder) putBytes(what string, b []byte) {
	e.putCount(what, len(b), model.InitialBytesMax)
	e.b = append(e.b, b...)
}

func (d *decoder) readBytes(what string) []byte {
	n := d.readCount(what, model.InitialBytesMax, 1)
	if n == 0 {
		return nil
	}
	return append([]byte(nil), d.takeNext(n)...)
}
