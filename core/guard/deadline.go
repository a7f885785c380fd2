package guard

import (
	"errors"
	"math"
	"os"
	"sync"
	"time"
)

// deadline is one direction's of a connection. An HTTP server moves a connection's deadlines six times for each call, nearly
// always to a later moment, and each move of the real timer takes the timers' lock. So a later deadline is only
// noted: the timer is left to end early, and whoever it wakes has it set again and goes on. A deadline never passes later than asked for.
type deadline struct {
	set func(time.Time) error // moves the timer of the connection underneath

	mu   sync.Mutex // guards what follows
	end  int64      // the deadline asked for, in ns since the epoch; never: none
	wake int64      // when the timer ends, at end or before
}

const never = math.MaxInt64

// looksAhead is how far ahead of a call a timer is set at most. It is as long as the shortest deadline that the gateway gives, so
// that in a busy connection all of them lie behind the timer.
const looksAhead = 10 * time.Second

// beginUnset is for a connection that has no deadline yet.
func (d *deadline) beginUnset(set func(time.Time) error) { d.set, d.end, d.wake = set, never, never }

// move sets the deadline; the zero time is none.
func (d *deadline) move(t, epoch time.Time) error {
	end := int64(never)
	if !t.IsZero() {
		end = int64(t.Sub(epoch))
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.end = end

	// A timer that has ended wakes nobody any more.
	now := int64(time.Since(epoch))
	if d.wake <= end && d.wake > now {
		return nil
	}
	return d.setTimer(min(end, now+int64(looksAhead)), epoch)
}

// setTimer has the timer end at a moment. mu is held.
func (d *deadline) setTimer(wake int64, epoch time.Time) error {
	d.wake = wake
	if wake == never {
		return d.set(time.Time{})
	}
	return d.set(epoch.Add(time.Duration(wake)))
}

// isLater tells of an error of a read or a write whether the timer alone ended it, so that it may go on.
func (d *deadline) isLater(err error, epoch time.Time) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	now := int64(time.Since(epoch))
	if d.end <= now {
		return false
	}

	// Another goroutine may have set it since.
	return d.wake > now || d.setTimer(d.end, epoch) == nil
}
