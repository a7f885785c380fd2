package frontend

import (
	"context"
	"fmt"
	"sync"
	"time"

	"downbeat.dev/core/model"
	"downbeat.dev/core/wire"
	"downbeat.dev/rdma"
)

// holdFor is how long beyond their request's deadline a backend is asked to hold outputs; it may grant less.
const holdFor = 2 * time.Second

// Part is one input of a request: bytes of this process, or an output held by a backend.
type Part struct {
	Data []byte // row-major, little-endian; unchanged until the request has ended
	Held *Held  // instead of Data
}

// Held is an output that stays on the backend that computed it. Other backends read it from there when it is used as
// a Part. It exists until its Result is released, at most for some seconds, and is lost if its backend dies: then
// requests that name it end with InputUnavailable. Its methods may be called from any goroutine.
type Held struct {
	client *Client
	holder *rdma.Peer
	place  model.Descriptor
	of     *heldRow
}

// heldRow is the held part of one result, which is released as a whole.
type heldRow struct {
	once    sync.Once
	holder  *rdma.Peer
	release wire.Release
}

// freeRow tells the backend, once, to release the row.
func (h *heldRow) freeRow() {
	h.once.Do(func() { _ = h.holder.Send(h.release.Append(nil)) }) // a backend that is gone holds nothing
}

// Bytes returns its size.
func (h *Held) Bytes() int { return int(h.place.InNode().Length) }

// Fetch reads the output into memory of this process, which the caller must free. The error wraps ErrUnavailable if
// the backend no longer holds it, or is gone.
func (h *Held) Fetch(ctx context.Context) (*Buffer, error) {
	// The data plane reads only into registered memory.
	b, err := h.client.Buffer(h.Bytes())
	if err != nil {
		return nil, err
	}

	// A backend that no longer holds it says so at once; a silent one is waited for until the lease ends.
	within := holdFor
	if d, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(d))
	}

	// The read ends by itself in time: until then the buffer belongs to the data plane.
	ended := make(chan error, 1)
	h.holder.ReadWithin(within, []rdma.Read{{Dst: b.Bytes(), Src: rdma.Remote(h.place.InNode())}}, nil, func(err error) { ended <- err })
	if err := <-ended; err != nil {
		b.Free()
		return nil, fmt.Errorf("%w: output of %d bytes that a backend held: %w", ErrUnavailable, h.Bytes(), err)
	}

	return b, nil
}

// ReleaseHeld releases the held outputs, which must not be used any more. A second call does nothing.
func (r *Result) ReleaseHeld() {
	for _, h := range r.Held {
		if h != nil {
			h.of.freeRow()
			break // the backend releases the whole row
		}
	}
	r.Held = nil
}

// takeHeld converts a call's output to its held outputs.
func (c *Client) takeHeld(p *call, r Result) (Result, error) {
	places, inline, err := wire.DecodeHeld(p.out, len(p.model.Outputs)+c.hiddenOutputs(p.model))
	if err != nil {
		r.Release()
		return Result{}, &OutcomeError{Reason: model.ExecutionFailed, Model: p.model.Name, Local: true, Cause: err}
	}

	r.Data, r.Held = inline, make([]*Held, len(places))
	var row *heldRow

	for i, d := range places {
		if d.Key == 0 {
			continue
		}

		// The held outputs of one result are released together, under the key of the first.
		if row == nil {
			row = &heldRow{holder: p.holder, release: wire.Release{Key: d.Key, Offset: d.InNode().Offset}}
		}
		r.Held[i] = &Held{client: c, holder: p.holder, place: d, of: row}
	}

	return r, nil
}

// hiddenOutputs returns the number of a model's outputs that callers do not see.
func (c *Client) hiddenOutputs(m *Model) int {
	_, out := m.Sequence.Hidden()
	return out
}

// releaseStray releases the held outputs of a request that has already ended.
func releaseStray(holder *rdma.Peer, body []byte) {
	// The number of outputs is unknown here, but the first descriptor with a key identifies the row.
	places, _, err := wire.DecodeHeld(body, 1)

	for n := 2; err == nil && places[n-2].Key == 0 && n <= wire.PartsMax; n++ {
		places, _, err = wire.DecodeHeld(body, n)
	}
	if err == nil {
		last := places[len(places)-1]
		_ = holder.Send(wire.Release{Key: last.Key, Offset: last.InNode().Offset}.Append(nil))
	}
}

// beginParts is beginCall for requests that may have Parts. endParts must follow the call's end.
func (c *Client) beginParts(ctx context.Context, r *Request) (*call, error) {
	if r.Parts != nil {
		in, err := c.composeInput(r)
		if err != nil {
			return nil, err
		}
		r.Input, r.composed = in, true
	}
	p, err := c.beginCall(ctx, r)
	if err != nil {
		r.endParts()
	}

	return p, err
}

// endParts frees the buffer of beginParts.
func (r *Request) endParts() {
	if r.composed {
		r.Input.Free()
		r.Input, r.composed = nil, false
	}
}

// composeInput writes a request's parts to registered memory: a table that locates each part, followed by those of
// this process.
func (c *Client) composeInput(r *Request) (*Buffer, error) {
	// For a model with sequences the hidden inputs are parts as well.
	m := c.Model(r.Model, r.Version)
	if m == nil {
		return nil, c.refuseUnknown(r)
	}
	if m.isRefused() {
		return nil, m.refusal()
	}
	inputs := m.allInputs()
	switch {
	case r.Prepare != nil || r.Input != nil:
		return nil, fmt.Errorf("%w: model %q: Parts: want neither Input nor Prepare beside them", ErrInvalid, m.Name)
	case !m.TakesParts():
		return nil, fmt.Errorf("%w: model %q: Parts: want a model all of whose tensors are of one fixed size", ErrInvalid, m.Name)
	case len(r.Parts) != len(inputs) || len(inputs) > wire.PartsMax:
		return nil, fmt.Errorf("%w: model %q: %d Parts: want one for each of %d inputs, of which there may be %d", ErrInvalid, m.Name, len(r.Parts), len(inputs), wire.PartsMax)
	}

	// Parts of this process follow the table one after another; held parts are described by their location.
	table := wire.Composed{Hold: r.Hold, Lease: uint32((m.Deadline() + holdFor) / time.Millisecond), Parts: make([]model.Descriptor, len(inputs))}
	at := wire.ComposedBytes(len(inputs))

	for i, part := range r.Parts {
		size := len(part.Data)
		if part.Held != nil {
			size = part.Held.Bytes()
			table.Parts[i] = part.Held.place
		} else {
			table.Parts[i] = model.Descriptor{Offset: uint32(at), Length: uint32(size)}
			at += size
		}
		if want := inputs[i].RowBytes(); size != want {
			return nil, fmt.Errorf("%w: model %q: input %q: %d bytes: want %d", ErrInvalid, m.Name, inputs[i].Name, size, want)
		}
	}

	// The buffer belongs to this request alone: another cannot use its table.
	in, err := c.Buffer(at)
	if err != nil {
		return nil, err
	}
	dst := table.Append(in.Bytes()[:0])

	for _, part := range r.Parts {
		dst = append(dst, part.Data...)
	}

	return in, nil
}

// TakesParts reports whether requests may have Parts: all tensors have one fixed size.
func (m *Model) TakesParts() bool { return m.fullInput >= 0 && m.fullOutput >= 0 }

// allInputs returns the inputs that a backend takes: the caller's and those of a sequence.
func (m *Model) allInputs() []model.Tensor {
	if len(m.hidden) == 0 {
		return m.Inputs
	}

	return append(append(make([]model.Tensor, 0, len(m.Inputs)+len(m.hidden)), m.Inputs...), m.hidden...)
}
