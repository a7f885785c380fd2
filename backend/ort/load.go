//go:build cgo

package ort

import (
	"errors"
	"fmt"
	"sync"

	onnx "github.com/yalue/onnxruntime_go"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/repo"
	"downbeat.dev/csrc/ortstring"
)

// loaded is a session bound to every slot.
type loaded struct {
	session *session
	slots   map[*device.Slot]*bound
	packed  *packed      // nil: every tensor has a fixed size and is bound in place in the slots
	running sync.RWMutex // read-held by a batch; write-held to free the session
}

// bound is a session's bindings to the memory of one slot, or to a packed model's own memory.
type bound struct {
	rows   []*onnx.IoBinding // by rows−1
	values []onnx.Value      // the tensors of the bindings
}

// Load opens m's session, unless an executor of the runtime already has, and binds it to every slot at every batch
// size.
func (e *Executor) Load(m *device.Model) (device.Footprint, error) {
	e.mu.RLock()
	known := e.models[m] != nil
	e.mu.RUnlock()
	if known {
		return device.Footprint{}, fmt.Errorf("load %s: loaded already", m.Name)
	}

	if m.Source.ONNXPath == "" {
		return device.Footprint{}, fmt.Errorf("model %s has no ONNX file (platform %s): %w", m.Name, m.Source.Platform, device.ErrUnsupported)
	}

	// Opening takes long, so it holds no lock that batches need.
	l, err := e.openSession(m, m.Source)
	if err != nil {
		return device.Footprint{}, fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err)
	}

	e.mu.Lock()
	e.models[m] = l
	e.mu.Unlock()
	return device.Footprint{Static: l.session.held, Warm: !e.runtime.warmsFirst(l.session)}, nil
}

// Prepare opens another session for m, which batches use after the switch; those under way end with the old one.
func (e *Executor) Prepare(m *device.Model, weights *repo.Model) (device.Update, error) {
	e.mu.RLock()
	old := e.models[m]
	e.mu.RUnlock()
	if old == nil {
		return device.Update{}, fmt.Errorf("update %s: not loaded", m.Name)
	}
	if err := m.CheckUpdate(weights); err != nil {
		return device.Update{}, fmt.Errorf("update %s version %s: %w", m.Name, m.Version, err)
	}

	l, err := e.openSession(m, weights)
	if err != nil {
		return device.Update{}, fmt.Errorf("update %s version %s: %w", m.Name, m.Version, err)
	}

	// The old session is freed when its last batch has ended.
	return device.Update{
		Switch: func() error {
			e.mu.Lock()
			e.models[m] = l
			e.mu.Unlock()
			return e.freeLoaded(old)
		},
		Discard: func() error { return e.freeLoaded(l) },
	}, nil
}

// Unload frees m's bindings, and its session if no other executor uses it, and returns the memory to the system.
func (e *Executor) Unload(m *device.Model) error {
	e.mu.Lock()
	l := e.models[m]
	delete(e.models, m)
	e.mu.Unlock()
	if l == nil {
		return fmt.Errorf("unload %s: not loaded", m.Name)
	}
	return e.freeLoaded(l)
}

// openSession opens the session of source's file for m and binds it.
func (e *Executor) openSession(m *device.Model, source *repo.Model) (*loaded, error) {
	e.mu.RLock()
	slots := append([]*device.Slot(nil), e.slots...)
	e.mu.RUnlock()

	opened, err := e.runtime.acquireSession(e, m, source)
	if err != nil {
		return nil, err
	}

	l := &loaded{session: opened, slots: map[*device.Slot]*bound{}}

	// A packed model runs on its own tensors, which are bound once and not to slots.
	if m.Varies {
		l.packed, err = l.bindPacked(m)
	}
	for i := 0; i < len(slots) && err == nil; i++ {
		err = l.addSlot(m, slots[i])
	}

	if err != nil {
		return nil, errors.Join(err, e.freeLoaded(l))
	}
	return l, nil
}

// addSlot binds the session to the first n rows of every tensor of s, for each n. A packed model needs no binding to
// s.
func (l *loaded) addSlot(m *device.Model, s *device.Slot) error {
	if err := s.Fits(m); err != nil || m.Varies {
		return err
	}
	b := &bound{}
	l.slots[s] = b

	for n := 1; n <= m.BatchMax; n++ {
		if err := l.bindRows(b, m, s, n); err != nil {
			return err
		}
	}
	return nil
}

func (l *loaded) bindRows(to *bound, m *device.Model, s *device.Slot, n int) error {
	b, err := l.session.CreateIoBinding()
	if err != nil {
		return fmt.Errorf("create binding: %w", err)
	}
	to.rows = append(to.rows, b)

	// The first n rows of a tensor are contiguous in the slot.
	for k := range m.Inputs {
		if err := to.bindTensor(l.session.strings, b.BindInput, m, &m.Inputs[k], s.Input(m, k, n), n); err != nil {
			return fmt.Errorf("bind input %q: %w", m.Inputs[k].Name, err)
		}
	}
	for k := range m.Outputs {
		if err := to.bindTensor(l.session.strings, b.BindOutput, m, &m.Outputs[k], s.Output(m, k, n), n); err != nil {
			return fmt.Errorf("bind output %q: %w", m.Outputs[k].Name, err)
		}
	}
	return nil
}

func (to *bound) bindTensor(api *ortstring.API, bind func(string, onnx.Value) error, m *device.Model, t *device.Tensor, memory []byte, n int) error {
	var shape onnx.Shape
	if m.Batched {
		shape = append(shape, int64(n))
	}

	v, err := newTensor(api, append(shape, t.Graph...), memory, elementType(t.Datatype))
	if err != nil {
		return err
	}

	// The binding holds a pointer, so the value must live as long.
	to.values = append(to.values, v)
	return bind(t.Name, v)
}

// freeBindings frees the bindings, then their values. A nil bound has none.
func (to *bound) freeBindings() error {
	if to == nil {
		return nil
	}
	var errs []error

	for _, b := range to.rows {
		errs = append(errs, b.Destroy())
	}
	for _, v := range to.values {
		errs = append(errs, v.Destroy())
	}
	return errors.Join(errs...)
}
