package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"downbeat.dev/backend/device"
)

// route is a model on one GPU, with the executor that has it loaded.
type route struct {
	model     *device.Model
	executor  device.Executor
	can       device.Capabilities
	footprint device.Footprint
	aside     error         // why the GPU's own executor does not run it; nil: it does
	unwarmed  error         // why its warm-up did not run; nil: it did
	loadTime  time.Duration // duration of loading
	warmTime  time.Duration // duration of the warm-up

	live    int           // orders accepted and not recycled; guarded by gpu.mu
	leaving chan struct{} // not nil: no further orders are accepted; closed when live is 0; guarded by gpu.mu
}

// routeOf returns the route of a model by its number; nil if it is not loaded.
func (g *gpu) routeOf(model uint32) *route {
	if all := *g.routes.Load(); int(model) < len(all) {
		return all[model]
	}
	return nil
}

// setRoute sets the route for later orders; nil: none. One placement at a time may call it.
func (g *gpu) setRoute(model uint32, r *route) {
	// Orders look up routes without a lock, so the list is replaced and never changed.
	all := slices.Clone(*g.routes.Load())

	for int(model) >= len(all) {
		all = append(all, nil)
	}
	all[model] = r
	g.routes.Store(&all)
}

// loadRoute loads a model on the first of the GPU's executors that supports it, and warms it up between the batches
// of others, unless it can be made from like, the version before it; nil: there is none. A failed load leaves nothing
// behind.
func (g *gpu) loadRoute(ctx context.Context, m *device.Model, like *route) (*route, error) {
	if err := g.growSlots(ctx, m.Bytes()); err != nil {
		return nil, fmt.Errorf("%s: %w", g.name, err)
	}

	// The two times are separate, because the scheduler learns the cost of a load.
	began := time.Now()
	r, err := g.makeLike(m, like)
	made := r != nil
	if err == nil && !made {
		r, err = g.chooseExecutor(m)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.name, err)
	}
	r.loadTime = time.Since(began)

	if made {
		r.warmTime = like.warmTime // of another load of it, for the scheduler
		return r, nil
	}

	began = time.Now()
	if err := g.warmUp(ctx, r); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", g.name, err), g.unload(r.executor, m))
	}
	r.warmTime = time.Since(began)
	g.noteAside(r)
	return r, nil
}

// makeLike makes m from the version before it, on its executor; nil: it must be loaded.
func (g *gpu) makeLike(m *device.Model, like *route) (*route, error) {
	if like == nil {
		return nil, nil
	}
	s, ok := like.executor.(device.Successor)
	if !ok {
		return nil, nil
	}

	f, err := callWithin(g, func() (device.Footprint, error) { return s.LoadLike(m, like.model) }, func(device.Footprint) { _ = like.executor.Unload(m) })
	if errors.Is(err, device.ErrShape) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}
	return &route{model: m, executor: like.executor, can: like.can, footprint: f, aside: like.aside}, nil
}

// chooseExecutor loads m on the first executor that supports it. Any other failure is final: if a model does not fit,
// or a GPU is lost, the processor must not take over.
func (g *gpu) chooseExecutor(m *device.Model) (*route, error) {
	var refusals error
	for _, e := range g.executors {
		f, err := callWithin(g, func() (device.Footprint, error) { return e.Load(m) }, func(device.Footprint) { _ = e.Unload(m) })
		switch {
		case err == nil:
			return &route{model: m, executor: e, can: e.Capabilities(), footprint: f, aside: refusals}, nil
		case !errors.Is(err, device.ErrUnsupported):
			return nil, errors.Join(refusals, err)
		}

		refusals = errors.Join(refusals, err)
	}
	return nil, refusals
}

// warmUp runs the route's batch sizes. A model that runs on neither its samples nor a guess is served all the same; a
// model of numbers must accept zeros.
func (g *gpu) warmUp(ctx context.Context, r *route) error {
	s, err := g.borrowSlot(ctx)
	if err != nil {
		return err
	}
	defer g.freeSlots(s, nil)

	m := r.model
	err = device.WarmUp(m, s, r.can.Passes, r.footprint.Warm, func(b device.Batch) error {
		_, err := g.timeAlone(ctx, r, b)
		return err
	})

	// Samples and texts are guesses: a failure says little about requests.
	if err == nil || ctx.Err() != nil || errors.Is(err, device.ErrLost) || !m.Varies && len(m.Samples) == 0 {
		return err
	}
	g.backend.log.Warn("warm-up failed: the first batches may be slow", "model", m.Name, "version", m.Version, "gpu", g.name, "err", err)
	r.unwarmed = err
	return nil
}

// timeAlone times a batch while nothing else runs on the GPU.
func (g *gpu) timeAlone(ctx context.Context, r *route, b device.Batch) (took time.Duration, err error) {
	err = g.runAlone(ctx, func() error {
		took, err = callWithin(g, func() (time.Duration, error) {
			began := time.Now()
			err := device.Execute(r.executor, b)
			return time.Since(began), err
		}, nil)
		return err
	})
	return took, err
}

// stepPatience is how long a step of a load waits for a moment without due batches.
const stepPatience = 20 * time.Millisecond

// errAlone is returned by runAlone if it has not run f.
var errAlone = errors.New("the GPU is lost or hangs")

// runAlone runs f between two batches, while the GPU's executors are idle. It waits for a moment without due batches,
// or else for the end of the batch in progress, so that a busy GPU can load too.
func (g *gpu) runAlone(ctx context.Context, f func() error) error {
	asked := time.Now()
	stop := context.AfterFunc(ctx, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.more.Broadcast()
	})
	defer stop()

	g.mu.Lock()

	// While steps wait, endDeciding wakes all waiters, so that a step is not passed over.
	g.steps++
	for ctx.Err() == nil && (g.deciding || len(g.due) > 0 && time.Since(asked) < stepPatience && !g.isSick()) {
		g.more.Wait()
	}
	g.steps--
	if err := ctx.Err(); err != nil {
		g.more.Broadcast()
		g.mu.Unlock()
		return err
	}

	// While this goroutine decides, no other passes batches to the executors.
	g.deciding = true
	g.mu.Unlock()
	defer g.endDeciding()

	// Batches in progress end first: their time must not count as the step's.
	for {
		g.mu.Lock()
		n := len(g.flying)
		g.mu.Unlock()
		switch {
		case g.isSick():
			return errAlone
		case n == 0:
			return f()
		}
		<-g.freed // sent when a batch lands, or by the watchdog
	}
}

// closeRoute ends a route: new orders are returned, and when the accepted ones have ended its executor unloads the
// model. If ctx ends before that, the route is in force again.
func (g *gpu) closeRoute(ctx context.Context, model uint32, r *route) error {
	if err := g.drainRoute(ctx, r); err != nil {
		return err
	}
	if g.routeOf(model) == r {
		g.setRoute(model, nil)
	}
	if err := g.unload(r.executor, r.model); err != nil {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	return nil
}

// drainRoute stops accepting orders and waits until the accepted ones have ended.
func (g *gpu) drainRoute(ctx context.Context, r *route) error {
	ended := make(chan struct{})
	g.mu.Lock()
	r.leaving = ended
	if r.live == 0 {
		close(ended)
	}
	g.mu.Unlock()

	select {
	case <-ended:
		return nil
	case <-ctx.Done():
	}

	// Too late: the route accepts orders again.
	live := g.reopenRoute(r)
	return fmt.Errorf("%s: %d batches of %s are still under way: %w", g.name, live, r.model.Name, ctx.Err())
}

// reopenRoute lets a route accept orders again. It returns how many it has.
func (g *gpu) reopenRoute(r *route) (live int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.leaving = nil
	return r.live
}

// leaveRoute removes an order from its route. g.mu is held.
func (r *route) leaveRoute() {
	if r.live--; r.live == 0 && r.leaving != nil {
		close(r.leaving)
	}
}

// noteAside logs that a real model does not run on the GPU, and in which precision it runs.
func (g *gpu) noteAside(r *route) {
	if m := r.model; r.isAside() {
		g.backend.log.Warn("the GPU's kernels do not support the model: it runs on the processor", "gpu", g.name, "model", m.Name,
			"version", m.Version, "precision", "fp32", "asked", cmp.Or(m.Source.Config.Params["precision"], "fp32"), "err", r.aside)
	}
}

// isAside reports whether the model runs on the processor beside a GPU.
func (r *route) isAside() bool { return r.aside != nil && r.can.OnHost }
