package frontend

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
)

// Models with variable dimensions or optional inputs are served in shape classes, each a model of its own with inputs
// of one shape. The first request of a class makes backends load it; later ones find it among the announced models.

const (
	classMost  = 30 * time.Second // to load a class
	classPause = time.Second      // before a class that failed to load is requested again
	classesMax = 64               // being requested at a time
)

// classes holds the classes that are being requested, or recently failed.
type classes struct {
	mu    sync.Mutex
	asked map[modelName]*classAsked // guarded by mu
}

// classAsked is a class requested from backends.
type classAsked struct {
	done chan struct{} // closed once err is set
	err  error
}

// HasShapes reports whether requests state shapes: a dimension is -1, or an input may be omitted. Make them with
// NewShapedInput, or for a ShapeClass.
func (m *Model) HasShapes() bool { return m.shaped }

// RequestVersion returns the Version that a Request needs to name this model and, for a shape class, only this class.
func (m *Model) RequestVersion() string { return m.announced }

// ShapeClass returns the model that serves requests whose inputs have these shapes, without a batch dimension and in
// the order of m's inputs. A nil shape means that the input is omitted. For the first request of a class it waits
// until a backend has loaded it, at most 30 s. Shapes that do not fit m return an error that wraps ErrInvalid.
// Otherwise the error is a *CommandError: CommandFailed if the model does not run on these shapes, CommandRefused if
// it already has the most classes allowed.
func (c *Client) ShapeClass(ctx context.Context, m *Model, shapes [][]int64) (*Model, error) {
	if !m.shaped || len(shapes) != len(m.Inputs) {
		return nil, fmt.Errorf("%w: model %q: %d shapes: want one for each of %d inputs, of a model with shapes", ErrInvalid, m.Name, len(shapes), len(m.Inputs))
	}
	class, err := m.ClassOf(shapes)
	if err != nil {
		return nil, fmt.Errorf("%w: model %q: %w", ErrInvalid, m.Name, err)
	}

	key := modelName{m.Name, model.ClassVersion(m.announced, class)}
	if k := c.Model(key.name, key.version); k != nil && k.Ready {
		return k, nil
	}

	// The class was never requested, or is no longer served.
	ctx, cancel := context.WithTimeout(ctx, classMost)
	defer cancel()
	if err := c.askClass(ctx, key, class); err != nil {
		return nil, err
	}

	// The scheduler announces a class before it answers, unless the backends that have it left meanwhile.
	for range c.WatchModels(ctx) {
		if k := c.Model(key.name, key.version); k != nil && k.Ready {
			return k, nil
		}

		// If the version has gone in the meantime, the class will never be announced.
		if c.hasGone(m) {
			return nil, &OutcomeError{Reason: model.NoBackend, Model: m.Name, Local: true, Cause: fmt.Errorf("version %s is not served any more", m.announced)}
		}
	}
	if c.closed() {
		return nil, ErrClosed
	}
	return nil, fmt.Errorf("model %q: shape class %s: not served yet: %w", m.Name, class, context.Cause(ctx))
}

// hasGone reports whether a version is no longer served, because an operator unloaded or replaced it.
func (c *Client) hasGone(m *Model) bool {
	now, newest := c.Model(m.Name, m.announced), c.Model(m.Name, "")
	if now == nil || newest == nil {
		return true
	}
	return now.Reason != "" || !now.Ready && newest.Ready && newest.announced != m.announced
}

// askClass requests a class from backends and waits for the answer. Concurrent callers share one request.
func (c *Client) askClass(ctx context.Context, key modelName, class string) error {
	w := &c.classes
	w.mu.Lock()
	a := w.asked[key]
	switch {
	case a != nil:
	case len(w.asked) >= classesMax:
		w.mu.Unlock()
		return &CommandError{CommandRefused, fmt.Sprintf("model %q: %d shape classes are being loaded already", key.name, classesMax)}
	default:
		if w.asked == nil {
			w.asked = map[modelName]*classAsked{}
		}
		a = &classAsked{done: make(chan struct{})}
		w.asked[key] = a
		c.done.Go(func() { c.orderClass(key, class, a) })
	}
	w.mu.Unlock()

	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return fmt.Errorf("model %q: shape class %s: it is being loaded: %w", key.name, class, context.Cause(ctx))
	}
}

// orderClass sends the command, even if its callers have given up.
func (c *Client) orderClass(key modelName, class string, a *classAsked) {
	ctx, cancel := context.WithTimeout(context.Background(), classMost)
	defer cancel()
	version, _ := model.SplitVersion(key.version)
	a.err = c.sendCommand(ctx, wire.ModelCommand{Op: wire.AddShape, Model: key.name, Version: version, Shape: class})
	close(a.done)

	forget := func() {
		c.classes.mu.Lock()
		defer c.classes.mu.Unlock()
		delete(c.classes.asked, key)
	}

	// A failed load is as expensive as a successful one, so it is not repeated for every request.
	if a.err != nil && !errors.Is(a.err, ErrClosed) {
		time.AfterFunc(classPause, forget)
		return
	}
	forget()
}

// NewShapedInput is NewInput for a model with shapes: shapes are the shapes of the provided inputs by name, without a
// batch dimension. Its errors are those of NewInput and ShapeClass.
func (c *Client) NewShapedInput(ctx context.Context, name string, shapes map[string][]int64) (*Buffer, error) {
	m := c.Model(name, "")
	if m == nil {
		return nil, c.refuseUnknown(&Request{Model: name})
	}

	// An input without a shape is omitted; ClassOf decides whether that is allowed.
	list := make([][]int64, len(m.Inputs))
	for k := range m.Inputs {
		list[k] = shapes[m.Inputs[k].Name]
	}
	for given := range shapes {
		if !slices.ContainsFunc(m.Inputs, func(t TensorInfo) bool { return t.Name == given }) {
			return nil, fmt.Errorf("%w: model %q: input %q: no such tensor; the model has %s", ErrInvalid, m.Name, given, tensorNames(m.Inputs))
		}
	}
	k, err := c.ShapeClass(ctx, m, list)
	if err != nil {
		return nil, err
	}
	return c.newInput(k)
}

// classFor returns the shape class of m that an input was made for.
func (c *Client) classFor(m *Model, in *Buffer) (*Model, error) {
	if in != nil && in.model != nil && in.model.Name == m.Name {
		// The version that the input was made for may have been replaced since.
		k := c.Model(m.Name, model.ClassVersion(m.announced, in.model.class))
		if k != nil && model.SameTensors(k.Inputs, in.model.Inputs) {
			return k, nil
		}
		if in.model.Version == m.Version {
			return in.model, nil
		}
	}
	return nil, fmt.Errorf("%w: model %q: its inputs have shapes of their own: want an Input from NewShapedInput, or the Version of a ShapeClass", ErrInvalid, m.Name)
}
