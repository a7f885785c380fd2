package backend

import (
	"context"
	"fmt"

	"downbeat.dev/backend/device"
	"downbeat.dev/core/wire"
)

// Place receives the scheduler's placements. They are carried out one after another, while batches continue.
func (b events) Place(list []wire.Placement) {
	for _, p := range list {
		if n, ok := wire.PlanOf(p.Number); ok {
			b.lastPlan.Store(n)
		}
		select {
		case b.placements <- namedPlacement{p, b.modelOf(p.Model)}:
		default:
			b.sendReport(wire.PlacementReport{Number: p.Number, GPU: p.GPU, Model: p.Model, State: wire.LoadFailed,
				Text: fmt.Sprintf("%d placements wait already", placementsMax)})
		}
	}
}

// namedPlacement is a placement with the model that its number named when it came.
type namedPlacement struct {
	wire.Placement
	model *device.Model // nil: none
}

// modelOf returns the model of a number; nil if there is none.
func (b *Backend) modelOf(number uint32) *device.Model {
	if all := b.modelEntries(); int(number) < len(all) {
		return all[number].model
	}
	return nil
}

// placementsMax is how many placements may wait.
const placementsMax = 256

// carryOut is the goroutine that carries out placements.
func (b *Backend) carryOut(ctx context.Context) {
	defer b.wait.Done()

	// Reports need the link, which is attached after New returns.
	if b.awaitLink() == nil {
		return
	}

	for {
		select {
		case <-b.stop:
			return
		case p := <-b.placements:
			b.placeOne(ctx, p)
		}
	}
}

// placeOne carries out one placement and reports the result.
func (b *Backend) placeOne(ctx context.Context, p namedPlacement) {
	// Numbers come from another process: check them before using them as indices.
	if int(p.GPU) >= len(b.gpus) || p.model == nil {
		b.sendReport(wire.PlacementReport{Number: p.Number, GPU: p.GPU, Model: p.Model, State: wire.LoadFailed,
			Text: fmt.Sprintf("gpu %d, model %d: this backend has %d and %d", p.GPU, p.Model, len(b.gpus), len(b.modelEntries()))})
		return
	}

	if b.beginPlacing(ctx) != nil {
		return
	}
	defer b.endPlacing()

	c, m := change{number: p.Number, gpu: b.gpus[p.GPU], model: p.Model}, b.modelOf(p.Model)
	var err error
	switch r := c.gpu.routeOf(p.Model); {
	case m.Name != p.model.Name || m.Version != p.model.Version:
		err = b.tellFailed(c, fmt.Errorf("model %s version %s has left, and its number names another one", p.model.Name, p.model.Version))
	case p.Op == wire.Unload:
		err = b.unloadFrom(ctx, c)
	case p.Op == wire.Load && r != nil:
		// It is loaded already, and the scheduler waits for the report.
		b.tellLoaded(c, r)
	default:
		// Read the repository again: its files may have changed since the start.
		if m, err = b.rereadModel(ctx, m); err != nil {
			err = b.tellFailed(c, err)
			break
		}
		err = b.loadOn(ctx, m, c)
	}

	if err != nil {
		b.log.Error("placement failed", "op", p.Op, "gpu", c.gpu.name, "model", m.Name, "version", m.Version, "err", err)
	}
}

// rereadModel returns the repository's present version of a model, or the given one if there is no repository.
func (b *Backend) rereadModel(ctx context.Context, m *device.Model) (*device.Model, error) {
	if b.config.Find == nil {
		return m, nil
	}

	found, err := b.config.Find(ctx, m.Name, m.Version)
	if err != nil {
		return m, err
	}

	return found[0], nil
}
