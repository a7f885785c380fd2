package frontend

import "context"

// Call is a request and its result.
type Call struct {
	Request
	Result Result // valid if Err is nil
	Err    error
}

// DoAll starts all requests in one burst and waits for each. Each needs its own Buffer, or Parts.
func (c *Client) DoAll(ctx context.Context, calls []Call) {
	begun := make([]*call, len(calls))
	for i := range calls {
		begun[i], calls[i].Err = c.beginParts(ctx, &calls[i].Request)
	}
	c.expectInputs(begun, calls)
	c.submitCalls(begun)
	c.prepareInputs(begun, calls)

	for i, p := range begun {
		if p == nil {
			continue
		}
		calls[i].Result, calls[i].Err = c.waitFor(ctx, p, calls[i].Input)
		calls[i].endParts()
	}
}

// prepareInputs runs the hooks of a burst, one after another, before any call is waited for: a batch of these calls
// waits for the inputs of all. Nil calls have not started.
func (c *Client) prepareInputs(begun []*call, calls []Call) {
	for i, p := range begun {
		if p != nil && calls[i].Prepare != nil {
			c.prepareInput(p, &calls[i].Request)
		}
	}
}

// DoWhole is DoAll for calls that are useless without each other. As soon as one ends without an output, it cancels
// the others, releases the outputs received so far, and returns that call's error.
func (c *Client) DoWhole(ctx context.Context, calls []Call) error {
	if len(calls) == 1 {
		calls[0].Result, calls[0].Err = c.Do(ctx, calls[0].Request)
		return calls[0].Err
	}

	begun := make([]*call, len(calls))
	var failed error
	for i := range calls {
		if failed == nil {
			begun[i], failed = c.beginParts(ctx, &calls[i].Request)
		}
		calls[i].Err = failed // including those that have not started
	}
	c.expectInputs(begun, calls)
	c.submitCalls(begun)
	if failed == nil {
		c.prepareInputs(begun, calls)
	}

	// Each call that has started must be waited for, even if it is cancelled.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for i, p := range begun {
		if p == nil {
			continue
		}
		if failed != nil {
			cancel(failed)
		}
		calls[i].Result, calls[i].Err = c.waitFor(ctx, p, calls[i].Input)
		calls[i].endParts()
		if failed == nil {
			failed = calls[i].Err
		}
	}

	for i := range calls {
		if failed != nil {
			calls[i].Result.Release()
		}
	}
	return failed
}
