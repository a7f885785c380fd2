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

// loadEverywhere loads a model on every GPU, one after another. If one fails, the earlier ones unload it.
func (b *Backend) loadEverywhere(ctx context.Context, model uint32, m *device.Model) error {
	// A GPU that had the model before keeps it.
	var fresh []*gpu
	for _, g := range b.gpus {
		had := g.routeOf(model) != nil
		if err := b.loadOn(ctx, change{gpu: g, model: model}, m); err != nil {
			for _, other := range fresh {
				err = errors.Join(err, b.unloadFrom(ctx, change{gpu: other, model: model}))
			}
			return err
		}
		if !had {
			fresh = append(fresh, g)
		}
	}

	return nil
}

// loadOn loads a model on one GPU, or puts its weights in force there if it is loaded.
func (b *Backend) loadOn(ctx context.Context, c change, m *device.Model) error {
	old := c.gpu.routeOf(c.model)
	if old != nil && m.Source.SameSettings(old.model.Source) {
		err := old.executor.Update(old.model, m.Source)
		if err == nil {
			b.tellLoaded(c, old)
			return nil
		}

		// New weights of other shapes need a load; any other error ends this one.
		if !errors.Is(err, device.ErrShape) {
			return b.tellFailed(c, err)
		}
	}

	// The new model is loaded beside the old one, which serves until it is replaced.
	r, err := c.gpu.loadRoute(ctx, m)
	if err != nil {
		return b.tellFailed(c, err)
	}

	err = b.measureRoute(ctx, c, r)
	switch {
	case err == nil && old != nil:
		err = b.replaceRoute(ctx, c, old, r)
	case err == nil:
		c.gpu.setRoute(c.model, r)
	}
	if err != nil {
		return b.tellFailed(c, errors.Join(err, r.executor.Unload(m)))
	}
	b.tellLoaded(c, r)
	return nil
}

// replaceRoute replaces a route by a loaded one. If the requests fit both, none is refused meanwhile. After an error
// the old route is in force.
func (b *Backend) replaceRoute(ctx context.Context, c change, old, r *route) error {
	// Requests for other shapes must not reach the new route, so the scheduler stops sending first. Otherwise the new
	// route takes over before the old one is drained.
	fits := old.model.Source.SameTensors(r.model.Source) && r.model.BatchMax >= old.model.BatchMax
	if fits {
		c.gpu.setRoute(c.model, r)
	} else {
		b.tellState(c, wire.PlacementReport{State: wire.Unloading})
	}

	if err := c.gpu.drainRoute(ctx, old); err != nil {
		c.gpu.setRoute(c.model, old)
		if !fits {
			b.tellLoaded(c, old)
		}
		return err
	}

	// A drained route takes no more orders, so the new one stands even if the old one's memory cannot be freed.
	c.gpu.setRoute(c.model, r)
	if err := old.executor.Unload(old.model); err != nil {
		b.log.Error("the replaced model's memory is not free", "gpu", c.gpu.name, "model", old.model.Name, "version", old.model.Version, "err", err)
	}
	return nil
}

// measureRoute makes sure that the model has a profile that holds here, and that it is fast enough for its SLO.
func (b *Backend) measureRoute(ctx context.Context, c change, r *route) error {
	m, e := r.model, b.modelEntries()[c.model]
	if p := b.profileOfLearnt(m); p != nil {
		m.Profile = p
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

		// The GPU takes no more batches of it, and its memory is lost: whoever placed it must not wait for the memory.
		return b.tellFailed(c, err)
	}

	// Slots that are too large only cost memory: the unload holds all the same.
	if err := c.gpu.shrinkSlots(ctx); err != nil {
		b.log.Warn("slots stay larger than the loaded models need", "gpu", c.gpu.name, "err", err)
	}

	b.log.Info("model unloaded", "model", r.model.Name, "version", r.model.Version, "gpu", c.gpu.name)
	b.tellState(c, wire.PlacementReport{State: wire.Unloaded})
	return nil
}
