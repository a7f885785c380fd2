package observe

import (
	"sync"
	"time"
)

// shared is an expensive value for readers that need one no older than their call. Readers that arrive while a value
// is being computed share the next one, so any number of concurrent readers cost at most two computations. All
// methods may be called concurrently.
type shared[T any] struct {
	take  func() T
	every time.Duration // shortest time between the starts of two computations

	taking chan struct{} // holds a token during a computation
	began  time.Time     // start of the latest computation; guarded by the token

	mu   sync.Mutex // guards next
	next *taken[T]  // the next value, which readers join; nil: nobody waits
}

// taken is a value that several readers wait for.
type taken[T any] struct {
	done  chan struct{} // closed when value is set
	value T
}

func newShared[T any](every time.Duration, take func() T) *shared[T] {
	return &shared[T]{take: take, every: every, taking: make(chan struct{}, 1)}
}

// freshValue returns a value whose computation began after the call.
func (s *shared[T]) freshValue() T {
	s.mu.Lock()
	next := s.next
	if next != nil {
		s.mu.Unlock()
		<-next.done
		return next.value
	}

	next = &taken[T]{done: make(chan struct{})}
	s.next = next
	s.mu.Unlock()

	s.taking <- struct{}{}
	time.Sleep(time.Until(s.began.Add(s.every)))

	// Readers that arrive from here on need a value that begins later, so they get the next one.
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()

	s.began = time.Now()
	next.value = s.take()
	<-s.taking
	close(next.done)
	return next.value
}
