package frontend

import (
	"context"
	"fmt"
	"iter"
	"sync"
)

// notice wakes all goroutines that wait for a change.
type notice struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next change; nil: nobody waits. Guarded by mu
}

// nextChange returns a channel that is closed at the next change.
func (n *notice) nextChange() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()

	// A channel is made only if a goroutine waits, and closed once.
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

func (n *notice) tellChange() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}

// WatchModels yields the result of Models at once, and again after each announcement or loss of the scheduler, until
// ctx ends or the client closes. Changes during the loop's body are reported together.
func (c *Client) WatchModels(ctx context.Context) iter.Seq[[]*Model] {
	return func(yield func([]*Model) bool) {
		for {
			changed := c.announced.nextChange() // before the look, so that no change is missed
			if c.closed() || ctx.Err() != nil || !yield(c.Models()) {
				return
			}

			select {
			case <-changed:
			case <-c.closing:
				return
			case <-ctx.Done():
				return
			}
		}
	}
}

// AwaitModel waits until a backend serves a model in some version, and returns its newest ready version. The error is
// ErrClosed, or ctx's with the list of models.
func (c *Client) AwaitModel(ctx context.Context, name string) (*Model, error) {
	for range c.WatchModels(ctx) {
		if m := c.Model(name, ""); m != nil && m.Ready {
			return m, nil
		}
	}
	if c.closed() {
		return nil, ErrClosed
	}

	// The error lists the models, because most often a name is misspelt.
	var names []string
	for _, m := range c.Models() {
		names = append(names, m.Name)
	}
	return nil, fmt.Errorf("model %q: not served; announced are %q: %w", name, names, context.Cause(ctx))
}
