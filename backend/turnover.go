package backend

import (
	"context"
	"errors"
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/wire"
)

// turnover is a model, or other weights of a loaded one, that is ready on a GPU and not in force yet (docs/decisions/0392).
type turnover struct {
	change
	old    *route         // in force until the switch; nil: none
	route  *route         // in force from then on; old if only its weights change
	update *device.Update // of old's weights; nil: route is another one
}

// fits reports whether the new route takes every request of the old one.
func (t *turnover) fits() bool {
	return t.old.model.Source.SameTensors(t.route.model.Source) && t.route.model.BatchMax >= t.old.model.BatchMax
}

// replaces reports whether another route takes the place of the old one.
func (t *turnover) replaces() bool { return t.old != nil && t.update == nil }

// prepareOn makes a model ready on one GPU, between the batches of what is in force there. A failure leaves nothing.
func (b *Backend) prepareOn(ctx context.Context, c change, m *device.Model) (*turnover, error) {
	t := &turnover{change: c, old: c.gpu.routeOf(c.model)}
	if t.old != nil && m.Source.SameSettings(t.old.model.Source) {
		u, err := callWithin(c.gpu, func() (device.Update, error) { return t.old.executor.Prepare(t.old.model, m.Source) }, func(u device.Update) { _ = u.Discard() })
		if err == nil {
			t.route, t.update = t.old, &u
			return t, nil
		}

		// Weights of other shapes need a load; any other error ends this one.
		if !errors.Is(err, device.ErrShape) {
			return nil, fmt.Errorf("%s: %w", c.gpu.name, err)
		}
	}

	var like *route
	if number, ok := b.predecessorOf(m); ok {
		like = c.gpu.routeOf(number)
	}

	r, err := c.gpu.loadRoute(ctx, m, like)
	if err != nil {
		return nil, err
	}

	if err := b.measureRoute(ctx, c, r); err != nil {
		return nil, errors.Join(err, c.gpu.unload(r.executor, m))
	}

	t.route = r
	return t, nil
}

// discardReady frees what is ready but not in force, and returns why, joined with the errors of freeing it. before is the
// model's entry before the update.
func (b *Backend) discardReady(ctx context.Context, ready []*turnover, before entry, why error) error {
	for _, t := range ready {
		if t.update != nil {
			why = errors.Join(why, t.update.Discard())
			continue
		}

		why = errors.Join(why, t.gpu.unload(t.route.executor, t.route.model))
		b.shrinkSlots(ctx, t.gpu)
	}

	// The scheduler was told of the new model's profile, and the old one serves on.
	if len(ready) > 0 && b.modelEntries()[ready[0].model].model != before.model {
		b.setEntry(ready[0].model, before)
		b.tellLoadable(ready[0].model)
	}
	return why
}

// switchRoutes puts what is ready on each GPU in force. It fails if an old route's batches do not end in time, and says
// where; then the old ones are in force everywhere, and nothing uses what is ready.
func (b *Backend) switchRoutes(ctx context.Context, ready []*turnover) (failed change, err error) {
	for _, t := range ready {
		b.beginReplacing(t)
	}

	// The batches of all old routes end before any of them is given up.
	for _, t := range ready {
		if !t.replaces() {
			continue
		}

		if err := t.gpu.drainRoute(ctx, t.old); err != nil {
			for _, t := range ready {
				err = errors.Join(err, b.undoReplacing(ctx, t))
			}
			return t.change, err
		}
	}

	for _, t := range ready {
		b.putInForce(t)
	}
	return change{}, nil
}

// beginReplacing lets the new route take the old one's requests if they fit both, so that none is refused. Requests for
// other shapes must not reach it: the scheduler stops sending first.
func (b *Backend) beginReplacing(t *turnover) {
	switch {
	case !t.replaces():
	case t.fits():
		t.gpu.setRoute(t.model, t.route)
	default:
		b.tellState(t.change, wire.PlacementReport{State: wire.Unloading})
	}
}

// undoReplacing puts the old route in force again, and waits for the batches that the new one has taken.
func (b *Backend) undoReplacing(ctx context.Context, t *turnover) error {
	if !t.replaces() {
		return nil
	}

	t.gpu.reopenRoute(t.old)
	t.gpu.setRoute(t.model, t.old)
	if !t.fits() {
		b.tellLoaded(t.change, t.old)
	}
	return t.gpu.drainRoute(context.WithoutCancel(ctx), t.route)
}

// putInForce ends a turnover whose old route, if another one replaces it, takes no more orders. Memory that cannot be
// freed does not undo it.
func (b *Backend) putInForce(t *turnover) {
	var err error
	switch {
	case t.update != nil:
		err = t.update.Switch()
	case t.old != nil:
		t.gpu.setRoute(t.model, t.route)
		err = t.gpu.unload(t.old.executor, t.old.model)
	default:
		t.gpu.setRoute(t.model, t.route)
	}

	if err != nil {
		b.log.Error("the replaced model's memory is not free", "gpu", t.gpu.name, "model", t.old.model.Name, "version", t.old.model.Version, "err", err)
	}
}
