package gateway

import (
	"sync"
	"time"
)

// transfer is a message being received or sent. Any goroutine may call abort, which ends it without blocking.
type transfer struct {
	since      time.Time
	abort      func(why *fault)
	prev, next *transfer // guarded by transfers.mu; nil: not listed
}

// transfers lists messages under way, the oldest first.
type transfers struct {
	mu   sync.Mutex
	root transfer // of the ring
}

func (l *transfers) addTransfer(t *transfer) {
	t.since = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()

	// The zero value is an empty list: the first entry creates the ring.
	if l.root.next == nil {
		l.root.next, l.root.prev = &l.root, &l.root
	}

	// Append the newest, so that the oldest is always first.
	last := l.root.prev
	t.prev, t.next = last, &l.root
	last.next, l.root.prev = t, t
}

// removeTransfer removes a transfer from the list; false if it was removed before.
func (l *transfers) removeTransfer(t *transfer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unlinkTransfer(t)
}

func (l *transfers) unlinkTransfer(t *transfer) bool {
	if t.next == nil {
		return false
	}
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
	return true
}

// abortOldest aborts the oldest transfer if it began before a time; false if none did.
func (l *transfers) abortOldest(before time.Time, why *fault) bool {
	l.mu.Lock()
	t := l.root.next
	if t == nil || t == &l.root || !t.since.Before(before) {
		l.mu.Unlock()
		return false
	}
	l.unlinkTransfer(t)
	l.mu.Unlock()

	// Call abort without the lock: closing a connection may return its replies' buffers, which takes the lock.
	t.abort(why)
	return true
}
