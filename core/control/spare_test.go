package control

import (
	"errors"
	"testing"

	"downbeat.dev/core/wire"
)

// TestSpareWorkOverLinks shows that a backend's offers return as steps, over TCP and within a process.
func TestSpareWorkOverLinks(t *testing.T) {
	for name, local := range map[string]bool{"tcp": false, "process": true} {
		t.Run(name, func(t *testing.T) {
			h := open(t, ServerOptions{})
			r := newRunner(func(wire.Item) {})
			_, b := h.dialBoth(local, DialOptions{}, newCaller(), r, backendHello("m"))
			waitFor(t, "ten steps", func() (enough bool) {
				// Offer again: the link may not be up yet, and a step that a loaded host delays suspends the work.
				err := b.OfferSpare([]wire.SpareOffer{{Work: 2, Name: "learn m", Step: 1e7, Weight: 1}})
				if err != nil && !errors.Is(err, ErrUnavailable) {
					t.Fatal(err)
				}
				r.note(func() { enough = r.steps >= 10 })
				return enough
			})
		})
	}
}

// Spare ends each step at once.
func (r *runner) Spare(m []wire.SpareStart) {
	<-r.linked
	r.note(func() { r.steps += len(m) })
	for _, x := range m {
		r.link.EndSpare([]wire.SpareEnd{{Number: x.Number}})
	}
}
