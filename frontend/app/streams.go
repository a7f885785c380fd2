package app

import (
	"errors"
	"fmt"
	"sync"
)

// Errors of frames that were not run.
var (
	ErrClosed   = errors.New("session closed")
	ErrTooFast  = errors.New("more frames than the session's rate")
	ErrSessions = errors.New("too many sessions")
	// ErrEvicted comes with an *EvictedError.
	ErrEvicted = errors.New("session evicted")
)

// EvictedError is the reason why an admitted session was closed.
type EvictedError struct {
	Application string
	Had, Left   int // number of GPUs: when the promises were last kept, and now
}

func (e *EvictedError) Error() string {
	return fmt.Sprintf("%v: application %q: %d GPUs of %d are left, and the promises of sessions with a greater claim take them all", ErrEvicted, e.Application, e.Left, e.Had)
}

// Is makes an eviction match ErrClosed as well.
func (e *EvictedError) Is(target error) bool { return target == ErrEvicted || target == ErrClosed }

// streams are the open sessions of an App.
type streams struct {
	most   int
	mu     sync.Mutex
	open   map[*Stream]struct{}
	given  uint64 // numbers given so far
	closed bool   // with the App
}

func (s *streams) addStream(stream *Stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if len(s.open) >= s.most {
		return fmt.Errorf("%w: %d are open, the limit", ErrSessions, s.most)
	}
	if s.open == nil {
		s.open = map[*Stream]struct{}{}
	}

	s.given++
	stream.number = s.given
	s.open[stream] = struct{}{}
	return nil
}

func (s *streams) removeStream(stream *Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, stream)
}

func (s *streams) closeAll() {
	s.mu.Lock()
	all := s.open
	s.open, s.closed = nil, true
	s.mu.Unlock()

	// Close takes the lock to remove the stream.
	for stream := range all {
		stream.Close()
	}
}

// Sessions returns the number of open sessions.
func (a *App) Sessions() int {
	a.streams.mu.Lock()
	defer a.streams.mu.Unlock()
	return len(a.streams.open)
}
