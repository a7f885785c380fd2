package frontend_test

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"downbeat.dev/core/control"
	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// switching is a link whose scheduler is replaced by another one, with other model ids, just before a request is sent.
// It records the model ids that the present scheduler gets, and ends each request.
type switching struct {
	events control.FrontendEvents
	over   atomic.Bool

	mu  sync.Mutex // guards got
	got []uint32
}

func (l *switching) Session() control.Submitter {
	if !l.over.Swap(true) {
		other := double
		other.ID = double.ID + 1
		l.events.Link(false, nil)
		l.events.Link(true, nil)
		l.events.Models([]model.Info{other})
	}
	return present{l}
}

func (l *switching) Submit(all []wire.Submit) error { return l.Session().Submit(all) }

func (*switching) Cancel(wire.Cancel) error        { return nil }
func (*switching) Command(wire.ModelCommand) error { return nil }
func (*switching) Close() error                    { return nil }

type present struct{ *switching }

func (l present) Submit(all []wire.Submit) error {
	var ends []wire.Outcome
	l.mu.Lock()
	for _, m := range all {
		l.got = append(l.got, m.Model)
		ends = append(ends, wire.Outcome{ID: m.ID, Reason: model.QueueFull})
	}
	l.mu.Unlock()
	l.events.Outcomes(ends)
	return nil
}

// TestNoSessionGetsTheIDsOfAnother: a scheduler that takes over while a request is on its way gets it once, with its own
// id of the model. By the former id it would run another model, and the caller would take that answer.
func TestNoSessionGetsTheIDsOfAnother(t *testing.T) {
	l := &switching{}
	c := dialLink(t, func(ev control.FrontendEvents) control.FrontendLink {
		l.events = ev
		return l
	})

	if _, err := c.InferCopy(t.Context(), "double", []byte{1, 2, 3, 4}); err == nil {
		t.Error("answered by a scheduler that refuses everything")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if want := []uint32{double.ID + 1}; !slices.Equal(l.got, want) {
		t.Errorf("the second scheduler gets models %v, want %v", l.got, want)
	}
}
