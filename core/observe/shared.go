package observe

import (
	"sync"
	"time"
)

// shared is a value that is costly to take, for readers who need one no older than their call. Readers that arrive
// while one is being taken share the next one, so any number of simultaneous readers cost at most two. All methods
// may be called from any goroutine.
type shared[T any] struct {
	take  func() T
	every time.Duration // least time between two starts; readers wait for it

	taking chan struct{} // holds a token while a value is being taken
	began  time.Time     // start of the latest one; guarded by the token

	mu   sync.Mutex // guards next
	next *taken[T]  // the one that new readers join; nil: nobody waits
}

// taken is a value that several readers wait for.
type taken[T any] struct {
	done  chan struct{} // closed once value is set
	value T
}

func newShared[T any](every time.Duration, take func() T) *shared[T] {
	return &shared[T]{take: take, every: every, taking: make(chan struct{}, 1)}
}

// freshValue returns a value whose taking began after the call.
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

	// From here on, new readers need a later value: they get the next one.
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()

	s.began = time.Now()
	next.value = s.take()
	<-s.taking
	close(next.done)
	return next.value
}
