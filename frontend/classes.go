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

// Models with variable dimensions or optional inputs are served in shape classes, each a model of its own that takes inputs
// of one shape. The first request of a class has backends load it; later ones find it among the announced models.

const (
	classMost  = 30 * time.Second // to load a class
	classPause = time.Second      // before a class that could not be loaded is asked for again
	classesMax = 64               // being asked for at a time
)

// classes are those that are being asked for, or could not be had a moment ago.
type classes struct {
	mu    sync.Mutex
	asked map[modelName]*classAsked // guarded by mu
}

// classAsked is one class that backends were asked for.
type classAsked struct {
	done chan struct{} // closed once err is set
	err  error
}

// HasShapes tells whether requests have shapes of their own: a dimension is -1, or an input may be left out. They are made
// with NewShapedInput, or for a ShapeClass.
func (m *Model) HasShapes() bool { return m.shaped }

// RequestVersion is what a Request's Version must be to mean this model and, of a shape class, no other class.
func (m *Model) RequestVersion() string { return m.announced }

// ShapeClass returns the model that serves requests whose inputs have these shapes, without a batch dimension and in the
// order of m's inputs; a nil shape stands for an input that is left out. For the first request of a class it waits until a
// backend has loaded it, 30 s at most. Shapes that do not fit m end in an error that wraps ErrInvalid; a class that cannot be had in a
// *CommandError: CommandFailed, as the model does not run on these shapes, or CommandRefused, as it has as many as it may.
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

	// Nobody has asked for the class, or nobody serves it any more.
	ctx, cancel := context.WithTimeout(ctx, classMost)
	defer cancel()
	if err := c.askClass(ctx, key, class); err != nil {
		return nil, err
	}

	// The scheduler announces a class before it answers, unless the backends that have it went meanwhile.
	for range c.WatchModels(ctx) {
		if k := c.Model(key.name, key.version); k != nil && k.Ready {
			return k, nil
		}

		// Its version may go while the class is asked for: then nobody will announce it.
		if c.hasGone(m) {
			return nil, &OutcomeError{Reason: model.NoBackend, Model: m.Name, Local: true, Cause: fmt.Errorf("version %s is not served any more", m.announced)}
		}
	}
	if c.closed() {
		return nil, ErrClosed
	}
	return nil, fmt.Errorf("model %q: shape class %s: not served yet: %w", m.Name, class, context.Cause(ctx))
}

// hasGone tells whether a version is not served any more, as an operator unloaded it or another one took its place.
func (c *Client) hasGone(m *Model) bool {
	now, newest := c.Model(m.Name, m.announced), c.Model(m.Name, "")
	if now == nil || newest == nil {
		return true
	}
	return now.Reason != "" || !now.Ready && newest.Ready && newest.announced != m.announced
}

// askClass waits until backends were asked for a class, once for all who wait for it.
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

// orderClass sends the command, whoever still waits for it.
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

	// A load that fails costs as much as one that does not: it is not tried for every request.
	if a.err != nil && !errors.Is(a.err, ErrClosed) {
		time.AfterFunc(classPause, forget)
		return
	}
	forget()
}

// NewShapedInput is NewInput for a model with shapes: the shape of each input that the request gives, by name, without a
// batch dimension. The errors are NewInput's and ShapeClass's.
func (c *Client) NewShapedInput(ctx context.Context, name string, shapes map[string][]int64) (*Buffer, error) {
	m := c.Model(name, "")
	if m == nil {
		return nil, c.refuseUnknown(&Request{Model: name})
	}

	// An input that is not named is left out, which the class says whether it may be.
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

// classFor returns the model that a request is for where m has shapes: the class that its input was made for.
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
