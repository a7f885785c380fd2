package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// lookedAtOnce is the number of services, GPUs or batches that housekeeping looks at per hold of a lock, where a look
// takes some nanoseconds. A bid takes a microsecond, and is the only one in its hold.
const lookedAtOnce = 64

// lock is the mutex of a partition or a ranker. Sessions and loops, which dispatch, hold it for some microseconds.
// Housekeeping holds it for one service or a few GPUs and then again for the next, a thousand times in a row. A
// sync.Mutex lets the goroutine that releases it take it again before the one that waits has woken up, so a dispatching
// goroutine would wait for a millisecond. Housekeeping therefore releases it by UnlockBehind.
type lock struct {
	sync.Mutex
	came, got atomic.Uint32 // goroutines that had to wait, and those of them that have got the lock
}

func (l *lock) Lock() {
	// Only goroutines that wait are counted, so a free lock costs no more than a mutex.
	if l.TryLock() {
		return
	}
	l.came.Add(1)
	l.Mutex.Lock()
	l.got.Add(1)
}

// UnlockBehind releases the lock and returns when as many goroutines have got it as were waiting for it. No other lock
// may be held.
func (l *lock) UnlockBehind() {
	l.Unlock()
	for came := l.came.Load(); int32(came-l.got.Load()) > 0; {
		runtime.Gosched()
	}
}

// holdForParts calls look with the lock held for one part of a long list after the other, until it returns that there are no
// more: n entries from place from on. Who waits goes first between the parts.
func (l *lock) holdForParts(look func(from, n int) (more bool)) {
	for from, more := 0, true; more; from += lookedAtOnce {
		l.Lock()
		more = look(from, lookedAtOnce)
		l.UnlockBehind()
	}
}
