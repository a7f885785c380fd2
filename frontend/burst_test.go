package frontend_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/frontend"
)

// bursts is a scheduler that refuses every request and records the sizes of bursts.
type bursts struct {
	events control.FrontendEvents

	mu    sync.Mutex // guards sizes
	sizes []int
}

func (l *bursts) Submit(all []wire.Submit) error {
	l.mu.Lock()
	l.sizes = append(l.sizes, len(all))
	l.mu.Unlock()

	var outcomes []wire.Outcome
	for _, m := range all {
		outcomes = append(outcomes, wire.Outcome{ID: m.ID, Reason: model.QueueFull})
	}
	l.events.Outcomes(outcomes)
	return nil
}

func (*bursts) Cancel(wire.Cancel) error        { return nil }
func (*bursts) Command(wire.ModelCommand) error { return nil }
func (*bursts) Close() error                    { return nil }

// dialLink dials a scheduler in this process that serves the model double over a link of the test's own.
func dialLink(t *testing.T, open func(control.FrontendEvents) control.FrontendLink) *frontend.Client {
	t.Helper()
	addr, forget := control.ListenInProcess(func(_ wire.FrontendHello, ev control.FrontendEvents) (control.FrontendLink, error) {
		l := open(ev)
		ev.Link(true, nil)
		ev.Models([]model.Info{double})
		return l, nil
	}, nil)
	t.Cleanup(func() { forget() })

	c, err := frontend.Dial(t.Context(), frontend.Options{Scheduler: addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestBurstsAreSubmittedAtOnce shows that the requests of a burst reach the scheduler together, so that none of them
// enters a batch before the others have arrived, and that each ends separately.
func TestBurstsAreSubmittedAtOnce(t *testing.T) {
	l := &bursts{}
	c := dialLink(t, func(ev control.FrontendEvents) control.FrontendLink {
		l.events = ev
		return l
	})

	const rows = 8
	for _, do := range []func(context.Context, []frontend.Call){c.DoAll, func(ctx context.Context, calls []frontend.Call) { _ = c.DoWhole(ctx, calls) }} {
		calls := make([]frontend.Call, rows)
		for i := range calls {
			calls[i].Request = frontend.Request{Model: "double", Input: input(t, c, 1, 2, 3, 4)}
		}
		do(t.Context(), calls)
		for i := range calls {
			if calls[i].Err == nil {
				t.Errorf("call %d: the scheduler's refusal is lost", i)
			}
		}
	}
	if want := []int{rows, rows}; !slices.Equal(l.sizes, want) {
		t.Errorf("requests came in messages of %v, want %v", l.sizes, want)
	}
}
