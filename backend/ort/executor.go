//go:build cgo

package ort

import (
	"errors"
	"fmt"
	"time"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/device"
)

// Executor runs batches on the calling thread. It belongs to one goroutine.
type Executor struct {
	runtime *Runtime
	models  map[*device.Model]*loaded
}

// loaded is a model bound to every slot.
type loaded struct {
	session *session
	slots   [][]*onnx.IoBinding // [slot][rows-1]
	values  []onnx.Value        // what the bindings refer to
	packed  *packed             // nil: every tensor has a fixed size and is bound where it lies in the slots
}

// Load opens m's session, if no executor of the runtime has, binds it to every slot at every batch
// size and runs each size once.
func (e *Executor) Load(m *device.Model, slots []*device.Slot) error {
	if e.models[m] != nil {
		return fmt.Errorf("load %s: loaded already", m.Name)
	}
	for _, s := range slots {
		if err := s.Fits(m); err != nil {
			return err
		}
	}
	sess, err := e.runtime.acquire(m)
	if err != nil {
		return fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err)
	}
	l := &loaded{session: sess}
	if m.Varies {
		l.packed, err = l.bindPacked(m)
		slots = nil
	}
	for _, s := range slots {
		bindings := make([]*onnx.IoBinding, m.BatchMax)
		l.slots = append(l.slots, bindings)
		for n := 1; n <= m.BatchMax && err == nil; n++ {
			bindings[n-1], err = l.bind(m, s, n)
		}
	}
	if err == nil {
		err = e.warmUp(m, l, slots)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err), e.free(l))
	}
	e.models[m] = l
	return nil
}

// bind wraps the first n rows of every tensor of the slot and binds them.
func (l *loaded) bind(m *device.Model, s *device.Slot, n int) (*onnx.IoBinding, error) {
	b, err := l.session.CreateIoBinding()
	if err != nil {
		return nil, fmt.Errorf("create binding: %w", err)
	}
	for k := range m.Inputs {
		if err := l.bindTensor(b.BindInput, m, &m.Inputs[k], s.Input(m, k, n), n); err != nil {
			return b, fmt.Errorf("bind input %q: %w", m.Inputs[k].Name, err)
		}
	}
	for k := range m.Outputs {
		if err := l.bindTensor(b.BindOutput, m, &m.Outputs[k], s.Output(m, k, n), n); err != nil {
			return b, fmt.Errorf("bind output %q: %w", m.Outputs[k].Name, err)
		}
	}
	return b, nil
}

func (l *loaded) bindTensor(bind func(string, onnx.Value) error, m *device.Model, t *device.Tensor, memory []byte, n int) error {
	var shape onnx.Shape
	if m.Batched {
		shape = append(shape, int64(n))
	}
	v, err := onnx.NewCustomDataTensor(append(shape, t.Graph...), memory, datatypes[t.Datatype])
	if err != nil {
		return err
	}
	l.values = append(l.values, v)
	return bind(t.Name, v)
}

// warmUpMax bounds the warm-up of a slow model: the largest and the smallest batch, and as many sizes
// between them as fit.
const warmUpMax = 3 * time.Second

// warmUp runs every batch size once, the largest first, so that the first real batch finds its
// kernels, memory patterns and arena ready. Executors that share the session need only the ends.
func (e *Executor) warmUp(m *device.Model, l *loaded, slots []*device.Slot) error {
	if len(slots) == 0 {
		return l.warmUpPacked(m)
	}
	for k := range m.Inputs {
		clear(slots[0].Input(m, k, m.BatchMax))
	}
	first := e.runtime.warms(l.session)
	start := time.Now()
	for i := range m.BatchMax {
		n := m.BatchMax - i
		if ends := n == 1 || n == m.BatchMax; !ends && (!first || time.Since(start) > warmUpMax) {
			continue
		}
		if err := l.session.RunWithBinding(l.slots[0][n-1]); err != nil {
			return fmt.Errorf("run a batch of %d on zeros: %w", n, err)
		}
	}
	return nil
}

// Execute runs b on the calling thread.
func (e *Executor) Execute(b device.Batch) error {
	l := e.models[b.Model]
	if l == nil {
		return fmt.Errorf("execute %s: not loaded", b.Model.Name)
	}
	if l.packed != nil {
		return l.executePacked(b)
	}
	if err := l.session.RunWithBinding(l.slots[b.Slot.Index][b.Rows-1]); err != nil {
		return fmt.Errorf("run %s, batch of %d: %w", b.Model.Name, b.Rows, err)
	}
	return nil
}

func (e *Executor) free(l *loaded) error {
	var errs []error
	for _, bindings := range l.slots {
		for _, b := range bindings {
			if b != nil {
				errs = append(errs, b.Destroy())
			}
		}
	}
	for _, v := range l.values {
		errs = append(errs, v.Destroy())
	}
	if l.packed != nil {
		errs = append(errs, l.packed.free())
	}
	return errors.Join(append(errs, e.runtime.release(l.session))...)
}

// Close frees the bindings, and the sessions that no other executor uses.
func (e *Executor) Close() error {
	var errs []error
	for m, l := range e.models {
		errs = append(errs, e.free(l))
		delete(e.models, m)
	}
	return errors.Join(errs...)
}
