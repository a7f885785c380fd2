package guard

import (
	"errors"
	"math"
	"os"
	"sync"
	"time"
)

// deadline is the deadline of one direction of a connection. An HTTP server moves a connection's deadlines six times
// per call, almost always to a later time, and each move of the real timer takes the runtime's timer lock. So move
// only stores a later deadline. The timer then fires early, and the read or write that it interrupts sets the timer
// again and continues. A deadline never fires later than requested.
type deadline struct {
	set func(time.Time) error // sets the timer of the underlying connection

	mu   sync.Mutex // guards the fields below
	end  int64      // the requested deadline, in ns since the epoch; never: none
	wake int64      // when the timer fires, at or before end
}

const never = math.MaxInt64

// looksAhead is the longest time for which a timer is set. It equals the gateway's shortest deadline, so that in a
// busy connection all deadlines lie behind the timer.
const looksAhead = 10 * time.Second

// beginUnset initialises a connection's deadline to none.
func (d *deadline) beginUnset(set func(time.Time) error) { d.set, d.end, d.wake = set, never, never }

// move sets the deadline; the zero time means none.
func (d *deadline) move(t, epoch time.Time) error {
	end := int64(never)
	if !t.IsZero() {
		end = int64(t.Sub(epoch))
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	d.end = end

	// A timer that has fired interrupts nothing any more, so it must be set again.
	now := int64(time.Since(epoch))
	if d.wake <= end && d.wake > now {
		return nil
	}
	return d.setTimer(min(end, now+int64(looksAhead)), epoch)
}

// setTimer sets the timer. The caller holds mu.
func (d *deadline) setTimer(wake int64, epoch time.Time) error {
	d.wake = wake
	if wake == never {
		return d.set(time.Time{})
	}
	return d.set(epoch.Add(time.Duration(wake)))
}

// isLater reports whether a read or write failed only because the timer fired early, so that it may continue.
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

	// Another goroutine may have set the timer since.
	return d.wake > now || d.setTimer(d.end, epoch) == nil
}
