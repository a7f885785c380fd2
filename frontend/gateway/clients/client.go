package clients

import (
	"sync"
	"sync/atomic"
	"time"
)

// Client is the owner of a token. A nil Client is a caller of a gateway without a list of clients: it may do
// everything.
type Client struct {
	Name   string
	digest digest
	limits atomic.Pointer[limits] // nil: the file no longer names this token
	usage  *usage
}

// usage is the usage of a client's name, whatever its token and limits are.
type usage struct {
	mu       sync.Mutex // guards what follows
	paidFor  time.Time  // end of the time that the admitted requests use up at the rate
	inFlight int64

	admitted, overRate, overInFlight, otherModel atomic.Uint64 // requests; otherModel counts calls
}

// CheckModel returns why the client may not use a model; nil: it may.
func (c *Client) CheckModel(model string) error {
	if c == nil {
		return nil
	}

	// A client without limits is no longer in the file, but its streams may still be open.
	l := c.limits.Load()
	if l == nil {
		return ErrRevoked
	}
	if !l.allowsModel(model) {
		c.usage.otherModel.Add(1)
		return ErrModel
	}
	return nil
}

// Allows is CheckModel for lists of models; it counts nothing.
func (c *Client) Allows(model string) bool {
	if c == nil {
		return true
	}
	l := c.limits.Load()
	return l != nil && l.allowsModel(model)
}

// CheckLimits returns the reason why not even one request would be admitted now. Callers use it before they read a
// request that may be long.
func (c *Client) CheckLimits(now time.Time) error { return c.takeRequests(0, now) }

// Admit counts n requests as under way until Done; an error is the reason for a refusal.
func (c *Client) Admit(n int, now time.Time) error { return c.takeRequests(int64(n), now) }

// burst is the time's worth of its rate that a client may use at once.
const burst = time.Second

// takeRequests admits n requests; with n = 0 it only checks whether one would be admitted.
func (c *Client) takeRequests(n int64, now time.Time) error {
	if c == nil {
		return nil
	}
	l := c.limits.Load()
	if l == nil {
		return ErrRevoked
	}

	// A refusal takes nothing: both limits are checked before anything is counted.
	u := c.usage
	u.mu.Lock()
	defer u.mu.Unlock()
	if l.inFlight > 0 && u.inFlight+max(n, 1) > l.inFlight {
		u.overInFlight.Add(uint64(max(n, 1)))
		return ErrInFlight
	}

	// The generic cell rate algorithm (ITU-T I.371). A call of more requests than a burst is admitted when the whole
	// burst is free, and delays later calls; otherwise it could never be served.
	if l.rate > 0 {
		if u.paidFor.Before(now) {
			u.paidFor = now
		}
		each := time.Duration(float64(time.Second) / l.rate)
		if ahead := u.paidFor.Sub(now); ahead > 0 && ahead+each*time.Duration(max(n, 1)) > max(burst, each) {
			u.overRate.Add(uint64(max(n, 1)))
			return ErrRate
		}
		u.paidFor = u.paidFor.Add(time.Duration(float64(n) * float64(time.Second) / l.rate))
	}

	u.inFlight += n
	u.admitted.Add(uint64(n))
	return nil
}

// Done ends n admitted requests.
func (c *Client) Done(n int) {
	if c == nil {
		return
	}
	c.usage.mu.Lock()
	c.usage.inFlight -= int64(n)
	c.usage.mu.Unlock()
}
