package gateway

import (
	"sync"
	"time"
)

// transfer is a message on its way in or out. abort ends it, from any goroutine, without blocking.
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

	// The zero value is an empty list: the ring is made with its first entry.
	if l.root.next == nil {
		l.root.next, l.root.prev = &l.root, &l.root
	}

	// The newest goes to the end, so that the oldest is always first.
	last := l.root.prev
	t.prev, t.next = last, &l.root
	last.next, l.root.prev = t, t
}

// removeTransfer ends a transfer's listing; false if it had ended already.
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

// abortOldest ends the oldest transfer, if it began before a time; false if none did.
func (l *transfers) abortOldest(before time.Time, why *fault) bool {
	l.mu.Lock()
	t := l.root.next
	if t == nil || t == &l.root || !t.since.Before(before) {
		l.mu.Unlock()
		return false
	}
	l.unlinkTransfer(t)
	l.mu.Unlock()

	// Without the lock: what ends a connection may give its replies' buffers back, which takes it.
	t.abort(why)
	return true
}
