package backend

import (
	"context"
	"errors"
	"fmt"
	"time"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/wire"
)

// change is the load or unload of one model on one GPU.
type change struct {
	number uint64 // of the placement; 0: the backend's own
	gpu    *gpu
	model  uint32
}

// loadEverywhere loads a model on every GPU. In the end either all of them accept its batches, with the same weights,
// or each has what it had before.
func (b *Backend) loadEverywhere(ctx context.Context, model uint32, m *device.Model) error {
	var changes []change
	served := false
	for _, g := range b.gpus {
		changes = append(changes, change{gpu: g, model: model})
		served = served || g.routeOf(model) != nil
	}

	if served {
		return b.loadOn(ctx, m, changes...)
	}

	// No GPU has other weights by the same name, so each of them serves as soon as it can.
	for i, c := range changes {
		if err := b.loadOn(ctx, m, c); err != nil {
			for _, earlier := range changes[:i] {
				err = errors.Join(err, b.unloadFrom(ctx, earlier))
			}
			return err
		}
	}
	return nil
}

// loadOn loads a model on some GPUs, or puts its weights in force there if it is loaded. First each GPU makes ready,
// beside what it serves; then all switch.
func (b *Backend) loadOn(ctx context.Context, m *device.Model, changes ...change) error {
	before := b.modelEntries()[changes[0].model]
	var ready []*turnover
	for _, c := range changes {
		t, err := b.prepareOn(ctx, c, m)
		if err != nil {
			return b.tellFailed(c, b.discardReady(ctx, ready, before, err))
		}
		ready = append(ready, t)
	}

	if c, err := b.switchRoutes(ctx, ready); err != nil {
		return b.tellFailed(c, b.discardReady(ctx, ready, before, err))
	}
	for _, t := range ready {
		b.tellLoaded(t.change, t.route)
	}
	return nil
}

// measureRoute makes sure that the model has a profile that holds here, and that it is fast enough for its SLO.
func (b *Backend) measureRoute(ctx context.Context, c change, r *route) error {
	m, e := r.model, b.modelEntries()[c.model]
	if number, ok := b.predecessorOf(m); ok {
		m.Profile = b.modelEntries()[number].model.Profile // it takes the same time
	} else if b.config.Measure != nil && !(e.measured && e.model == m) && !(r.unwarmed != nil && m.Profile != nil) {
		s, err := c.gpu.borrowSlot(ctx)
		if err != nil {
			return err
		}

		// Measured between the batches of other models, which continue.
		run := func(batch device.Batch) (time.Duration, error) { return c.gpu.timeAlone(ctx, r, batch) }

		p, err := b.config.Measure(ctx, run, m, s)
		c.gpu.freeSlots(s, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", c.gpu.name, err)
		}
		m.Profile = p
	}

	if m.Profile == nil || m.Profile.Max() < m.BatchMax {
		return fmt.Errorf("model %s version %s has no profile for batches up to %d", m.Name, m.Version, m.BatchMax)
	}

	if slo, one := m.Source.SLO, m.Profile.Exec(1); slo > 0 && slo < one { // the scheduler would refuse all requests
		return fmt.Errorf("model %s version %s: SLO %v is shorter than ℓ(1) = %v here: set the parameter slo_ms in its config.pbtxt higher", m.Name, m.Version, slo, one)
	}

	b.setEntry(c.model, entry{model: m, measured: true})
	b.tellLoadable(c.model)
	return nil
}

// unloadFrom unloads a model from one GPU, and frees memory that only it needed.
func (b *Backend) unloadFrom(ctx context.Context, c change) error {
	r := c.gpu.routeOf(c.model)
	if r == nil {
		b.tellState(c, wire.PlacementReport{State: wire.Unloaded})
		return nil
	}

	b.tellState(c, wire.PlacementReport{State: wire.Unloading})
	if err := c.gpu.closeRoute(ctx, c.model, r); err != nil {
		if c.gpu.routeOf(c.model) == r { // it is in force again
			b.tellLoaded(c, r)
			return err
		}

		// The GPU takes no more batches of the model, but its memory stays occupied. Report the failure, so that a plan
		// does not wait for the memory.
		return b.tellFailed(c, err)
	}

	b.shrinkSlots(ctx, c.gpu)
	b.log.Info("model unloaded", "model", r.model.Name, "version", r.model.Version, "gpu", c.gpu.name)
	b.tellState(c, wire.PlacementReport{State: wire.Unloaded})
	return nil
}

// shrinkSlots frees memory of slots after an unload, which holds in any case: slots that are too large only cost memory.
func (b *Backend) shrinkSlots(ctx context.Context, g *gpu) {
	if err := g.shrinkSlots(ctx); err != nil {
		b.log.Warn("slots stay larger than the loaded models need", "gpu", g.name, "err", err)
	}
}
