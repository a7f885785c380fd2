package rdma

import (
	"sync/atomic"
	"time"
)

const (
	echoEvery = 250 * time.Millisecond
	tickEvery = 50 * time.Millisecond
)

// echo is a question to which the peer's loop answers at once. One is under way at a time.
type echo struct {
	sent atomic.Int64  // node time of the one under way, 0 when none: set by the loop, cleared by the reader
	next time.Duration // owned by the loop
}

// isDue tells whether to ask at now, and notes that it is done.
func (e *echo) isDue(now time.Duration) bool {
	// One echo at a time: its id is when it was sent, so an answer needs no table.
	if now < e.next || !e.sent.CompareAndSwap(0, int64(now)) {
		return false
	}
	e.next = now + echoEvery
	return true
}

// sentAt is when the echo under way was sent, 0 when there is none.
func (e *echo) sentAt() time.Duration { return time.Duration(e.sent.Load()) }

// takeAnswer takes the answer to the echo of node time sent, and reports false if there was none.
func (e *echo) takeAnswer(sent uint64) bool {
	return sent != 0 && e.sent.CompareAndSwap(int64(sent), 0)
}
