//go:build !linux

package pace

import (
	"sync"
	"time"
)

// Timer waits for one moment at a time.
type Timer struct {
	timer *time.Timer
	stop  chan struct{}
	once  sync.Once
}

// New returns a timer. The caller must Close it.
func New() (*Timer, error) {
	t := &Timer{timer: time.NewTimer(time.Hour), stop: make(chan struct{})}
	t.timer.Stop()
	return t, nil
}

// Wait returns true at t, or at once if t has passed. After Interrupt or Close it returns false at once, always. It
// allocates nothing.
func (t *Timer) Wait(until time.Time) bool {
	// Go's timers fire late, so spin for the last Margin.
	if left := time.Until(until) - Margin; left > 0 {
		t.timer.Reset(left)
		select {
		case <-t.timer.C:
		case <-t.stop:
			t.timer.Stop()
			return false
		}
	}

	// Interrupt applies to every later wait, also to one whose moment has passed.
	select {
	case <-t.stop:
		return false
	default:
		spinUntil(until)
		return true
	}
}

// Interrupt ends the wait under way and all later ones.
func (t *Timer) Interrupt() { t.once.Do(func() { close(t.stop) }) }

// Close interrupts and frees the timer. No Wait may begin after it.
func (t *Timer) Close() error {
	t.Interrupt()
	return nil
}
