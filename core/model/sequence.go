package model

import (
	"fmt"
	"slices"
)

// Sequence describes how the requests of a model follow one another. Each request is a step: controls mark its place
// in the sequence, and states carry values from the previous step. A backend does not know about sequences: controls
// and states are tensors of the request like any other.
type Sequence struct {
	Idle     int64     // ns; a sequence ends after so long without a step
	Controls []Control // the inputs after those that clients provide
	States   []State   // the inputs after the controls, and the outputs after those that clients see
}

// ControlKind is the meaning of a control.
type ControlKind uint8

// The kinds of controls.
const (
	ControlStart ControlKind = iota + 1 // the step is its sequence's first
	ControlEnd                          // the step is its sequence's last
	ControlReady                        // the row holds a request; always true here
	ControlID                           // the sequence's number
)

// Control is an input of one element that marks a step's place in its sequence.
type Control struct {
	Input       string
	Kind        ControlKind
	False, True []byte // the element in its datatype; nil for ControlID
}

// State is an output that is an input of the next step.
type State struct {
	Input, Output string
	Initial       []byte // value for the first step; nil: zeros
}

// Limits of a Sequence, so that a message can carry it.
const (
	SequenceTensorsMax = 32        // controls, and likewise states
	InitialBytesMax    = 1<<16 - 1 // all explicit initial states together
)

// Hidden returns the number of inputs and outputs that clients do not see; these come last. A nil Sequence hides
// none.
func (s *Sequence) Hidden() (inputs, outputs int) {
	if s == nil {
		return 0, 0
	}
	return len(s.Controls) + len(s.States), len(s.States)
}

// HasID reports whether a control carries the sequence's number. A nil Sequence has none.
func (s *Sequence) HasID() bool {
	return s != nil && slices.ContainsFunc(s.Controls, func(c Control) bool { return c.Kind == ControlID })
}

// Check returns an error if the Sequence does not fit the model's tensors.
func (s *Sequence) Check(inputs, outputs []Tensor) error {
	in, out := s.Hidden()
	if in >= len(inputs) || out >= len(outputs) {
		return fmt.Errorf("%d inputs and %d outputs of which %d and %d are a sequence's: want one of each for clients", len(inputs), len(outputs), in, out)
	}

	// The frontend assembles and splits steps by the tensors' sizes, so sizes must be fixed.
	for _, list := range [][]Tensor{inputs, outputs} {
		for i := range list {
			if list[i].Varies() {
				return fmt.Errorf("%q is BYTES: a sequence's tensors want a fixed size", list[i].Name)
			}
		}
	}

	hidden := inputs[len(inputs)-in:]
	for i := range s.Controls {
		if err := s.Controls[i].checkTensor(&hidden[i]); err != nil {
			return err
		}
	}

	// Initial states travel with each announcement, so their sum is bounded.
	total := 0
	for i := range s.States {
		x, of := &s.States[i], &hidden[len(s.Controls)+i]
		to := &outputs[len(outputs)-out+i]
		switch {
		case x.Input != of.Name || x.Output != to.Name:
			return fmt.Errorf("state %q, %q stands where the tensors %q, %q are", x.Input, x.Output, of.Name, to.Name)
		case !SameTensors([]Tensor{{Datatype: of.Datatype, Shape: of.Shape}}, []Tensor{{Datatype: to.Datatype, Shape: to.Shape}}):
			return fmt.Errorf("state %q is %s %v, its output %q %s %v: want the same", x.Input, of.Datatype, of.Shape, x.Output, to.Datatype, to.Shape)
		case x.Initial != nil && len(x.Initial) != of.RowBytes():
			return fmt.Errorf("state %q: initial state of %d bytes: want %d", x.Input, len(x.Initial), of.RowBytes())
		}
		total += len(x.Initial)
	}
	if total > InitialBytesMax {
		return fmt.Errorf("initial states of %d bytes: want at most %d", total, InitialBytesMax)
	}
	return nil
}

// checkTensor compares a control with its tensor.
func (c *Control) checkTensor(t *Tensor) error {
	size := t.Datatype.Size()
	switch {
	case c.Input != t.Name:
		return fmt.Errorf("control %q stands where the tensor %q is", c.Input, t.Name)
	case t.RowElements() != 1:
		return fmt.Errorf("control %q: shape %v: want one element", c.Input, t.Shape)
	case c.Kind < ControlStart || c.Kind > ControlID:
		return fmt.Errorf("control %q: kind %d: want %d to %d", c.Input, c.Kind, ControlStart, ControlID)
	case c.Kind != ControlID && (len(c.False) != size || len(c.True) != size):
		return fmt.Errorf("control %q: values of %d and %d bytes: want %d", c.Input, len(c.False), len(c.True), size)
	case c.Kind == ControlID && (len(c.False) > 0 || len(c.True) > 0):
		return fmt.Errorf("control %q has values: a sequence's number has none", c.Input)
	case c.Kind == ControlID && t.Datatype != Uint64 && t.Datatype != Int64 && t.Datatype != Uint32 && t.Datatype != Int32:
		return fmt.Errorf("control %q is %s: want a sequence's number as UINT64, INT64, UINT32 or INT32", c.Input, t.Datatype)
	}
	return nil
}
