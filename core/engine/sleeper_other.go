//go:build !linux

package engine

import "time"

// sleeper sleeps by the Go runtime's timers, which are about a millisecond late.
type sleeper struct{ c chan struct{} }

func (s *sleeper) open() error {
	s.c = make(chan struct{}, 1)
	return nil
}

func (s *sleeper) closeTimer() {}
func (s *sleeper) precise()    {}

func (s *sleeper) sleep(d time.Duration) (whole bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.c:
		return false
	}
}

func (s *sleeper) wake() {
	select {
	case s.c <- struct{}{}:
	default:
	}
}
