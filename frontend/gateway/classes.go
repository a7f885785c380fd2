package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"google.golang.org/grpc/codes"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// chooseClass finds the shape class of a call's rows, for a model with classes. The first call of a class waits until
// the class is loaded, at most for the call's timeout if it has one.
func (g *Gateway) chooseClass(ctx context.Context, in *inference) *fault {
	m := in.model
	if !m.HasShapes() {
		return nil
	}

	// Clients send inputs in any order; a class is named in the model's order.
	shapes := make([][]int64, len(m.Inputs))
	for i := range in.inputs {
		t := &in.inputs[i]
		k := slices.IndexFunc(m.Inputs, func(w model.Tensor) bool { return w.Name == t.name })
		if k < 0 {
			return invalidFault("model %q: input %q: no such input; the model has %s", m.Name, t.name, namesOf(m.Inputs))
		}
		row, fits := rowShape(t.shape, &m.Inputs[k])
		if !fits {
			return invalidFault("model %q: input %q: shape %v: must be %v, -1 being any size from 0 on", m.Name, t.name, t.shape, modelShape(m, &m.Inputs[k]))
		}
		shapes[k] = row
	}

	// Subtract the wait for the class from the call's timeout.
	if in.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, startOf(ctx).Add(in.timeout))
		defer cancel()
	}
	class, err := g.client.ShapeClass(ctx, m, shapes)

	// If the version was replaced meanwhile, a call that named none moves to the newest.
	if newest := g.client.Model(m.Name, ""); err != nil && in.wanted == "" && newest != nil && newest.Version != m.Version && newest.HasShapes() {
		class, err = g.client.ShapeClass(ctx, newest, shapes)
	}
	if err != nil {
		return classFault(err)
	}
	in.model = class
	return nil
}

// rowShape removes the batch dimension from a client's shape, if it has one, and reports whether the rest fits the
// tensor.
func rowShape(shape []int64, want *model.Tensor) ([]int64, bool) {
	if len(shape) == len(want.Shape)+1 {
		shape = shape[1:]
	}
	// Return a copy that is not nil: nil means an omitted input.
	return append([]int64{}, shape...), want.Fits(shape)
}

// classFault returns the fault for a shape class that cannot be used.
func classFault(err error) *fault {
	var c *frontend.CommandError
	switch {
	case !errors.As(err, &c):
	case c.Code == frontend.CommandFailed:
		return invalidFault("%s", c.Text)
	case c.Code == frontend.CommandRefused:
		return refusalFault(http.StatusTooManyRequests, codes.ResourceExhausted, "too_many_shapes", c.Text)
	default:
		return refusalFault(http.StatusServiceUnavailable, codes.Unavailable, "no_backend", c.Text)
	}

	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return refusalFault(http.StatusGatewayTimeout, codes.DeadlineExceeded, model.DeadlinePast.String(), err.Error())
	case errors.Is(err, context.Canceled):
		return refusalFault(httpCanceled, codes.Canceled, model.Canceled.String(), err.Error())
	}
	return faultOf(err)
}

// closeShape computes the size of the single open dimension of an input without a shape from the number of its bytes.
func (t *input) closeShape(m *frontend.Model, bytes int) *fault {
	open := slices.Index(t.shape, model.OpenDim)
	if open < 0 {
		return nil
	}

	// Texts count as elements, not as bytes.
	size := max(t.datatype.Size(), 1)
	if t.datatype == model.Bytes {
		bytes, _ = model.CountTexts(t.raw)
	}

	// The open dimension is what remains when the data is divided by all others.
	shape := slices.Clone(t.shape)
	for i, n := range shape {
		if i == open {
			continue
		}
		if n == model.OpenDim {
			return invalidFault("model %q: input %q: shape %v: more than one dimension is open: send an inference request that states the shape", m.Name, t.name, t.shape)
		}
		size *= int(n)
	}

	if bytes%size != 0 {
		return invalidFault("model %q: input %q: the data does not fill shape %v a whole number of times", m.Name, t.name, t.shape)
	}
	shape[open] = int64(bytes / size)
	t.shape = shape
	return nil
}
