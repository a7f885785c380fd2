package accel

import (
	"errors"
	"fmt"
	"slices"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/repo"
)

// Prepare makes a program with the other weights beside m's. Batches continue meanwhile.
func (e *Executor) Prepare(m *device.Model, weights *repo.Model) (device.Update, error) {
	l := e.findLoaded(m)
	if l == nil {
		return device.Update{}, fmt.Errorf("update %s: not loaded", m.Name)
	}

	next, err := e.succeed(l, m, weights)
	if err != nil {
		return device.Update{}, fmt.Errorf("update %s version %s: %w", m.Name, m.Version, err)
	}
	return device.Update{
		Switch: func() error { e.switchTo(m, next); return nil },
		Discard: func() error {
			e.mu.Lock()
			defer e.mu.Unlock()
			return next.program.Close()
		},
	}, nil
}

// succeed makes a successor of l's program. Its batches take as long.
func (e *Executor) succeed(l *loaded, m *device.Model, weights *repo.Model) (*loaded, error) {
	p, err := l.program.Succeed(m, weights)
	if err != nil {
		return nil, err
	}
	next := newLoaded(m, p)

	e.mu.Lock()
	defer e.mu.Unlock()
	copy(next.took, l.took)
	return next, nil
}

// switchTo makes next the program of m. The old one ends with the last of its batches.
func (e *Executor) switchTo(m *device.Model, next *loaded) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.setLoaded(m, next)
	e.retired = append(e.retired, old)
	e.closeRetired()
}

// closeRetired closes the retired programs that no batch uses any more. e.mu is held.
func (e *Executor) closeRetired() {
	e.retired = slices.DeleteFunc(e.retired, func(l *loaded) bool {
		if l.under > 0 {
			return false
		}
		e.unclosed = errors.Join(e.unclosed, l.program.Close()) // no batch's fault
		return true
	})
}

// LoadLike implements device.Successor.
func (e *Executor) LoadLike(m, like *device.Model) (device.Footprint, error) {
	if err := e.mayLoad(m); err != nil {
		return device.Footprint{}, err
	}
	l := e.findLoaded(like)
	if l == nil || m.BatchMax != like.BatchMax {
		return device.Footprint{}, fmt.Errorf("load %s version %s like version %s: %w", m.Name, m.Version, like.Version, device.ErrShape)
	}

	next, err := e.succeed(l, m, m.Source)
	if err != nil {
		return device.Footprint{}, fmt.Errorf("model %s version %s: %w", m.Name, m.Version, err)
	}

	e.setLoaded(m, next)
	return next.program.Footprint(), nil
}
