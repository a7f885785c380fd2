package observe

import (
	"sync"
	"time"
)

// shared is a value that is costly to take, for readers who want one that is no older than their call. Those who come
// while one is being taken get the next one together: any number of readers at a time cost two at most. All methods may
// be called from any goroutine.
type shared[T any] struct {
	take  func() T
	every time.Duration // least time between the beginnings of two; readers wait for it

	taking chan struct{} // holds a token while one is being taken
	began  time.Time     // the latest one; guarded by the token

	mu   sync.Mutex // guards next
	next *taken[T]  // that readers join; nil: nobody waits
}

// taken is a value that several readers wait for.
type taken[T any] struct {
	done  chan struct{} // closed once value is there
	value T
}

func newShared[T any](every time.Duration, take func() T) *shared[T] {
	return &shared[T]{take: take, every: every, taking: make(chan struct{}, 1)}
}

// freshValue returns a value that was begun after the call.
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

	// Who comes from here on may want to see what happens from here on: it gets the one after this.
	s.mu.Lock()
	s.next = nil
	s.mu.Unlock()

	s.began = time.Now()
	next.value = s.take()
	<-s.taking
	close(next.done)
	return next.value
}
