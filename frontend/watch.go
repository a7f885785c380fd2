package frontend

import (
	"context"
	"fmt"
	"iter"
	"sync"
)

// notice wakes all who wait for something to change.
type notice struct {
	mu   sync.Mutex
	next chan struct{} // closed at the next change; nil: nobody waits. Guarded by mu
}

// nextChange returns what is closed at the next change.
func (n *notice) nextChange() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()

	// A channel is made only where somebody waits, and closed once: the next change has another one.
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

// WatchModels yields what Models returns, at once and again each time the scheduler has announced something or was lost,
// until ctx ends or the client closes. Changes that come while the loop's body runs are told as one.
func (c *Client) WatchModels(ctx context.Context) iter.Seq[[]*Model] {
	return func(yield func([]*Model) bool) {
		for {
			changed := c.announced.nextChange() // before the look, so that no change comes between
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

// AwaitModel waits until a backend serves a model in some version, and returns its newest. The error is ErrClosed, or ctx's
// with the models that there are.
func (c *Client) AwaitModel(ctx context.Context, name string) (*Model, error) {
	for range c.WatchModels(ctx) {
		if m := c.Model(name, ""); m != nil && m.Ready {
			return m, nil
		}
	}
	if c.closed() {
		return nil, ErrClosed
	}

	// The error lists what there is: most often a name is misspelt.
	var names []string
	for _, m := range c.Models() {
		names = append(names, m.Name)
	}
	return nil, fmt.Errorf("model %q: not served; announced are %q: %w", name, names, context.Cause(ctx))
}
