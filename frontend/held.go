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

// holdFor is how long a backend is asked to hold outputs beyond their request's deadline; it may grant less.
const holdFor = 2 * time.Second

// Part is one input of a request: bytes of this process, or an output that a backend holds.
type Part struct {
	Data []byte // row-major, little-endian; not written to until the request has ended
	Held *Held  // in place of Data
}

// Held is an output that lies with the backend that has computed it. Other backends read it from there, as a Part. It is there
// until its Result is released, at most for some seconds, and dies with its backend: then requests that name it end with
// InputUnavailable. Its methods may be called from any goroutine.
type Held struct {
	client *Client
	holder *rdma.Peer
	place  model.Descriptor
	of     *heldRow
}

// heldRow is what of one result is held: it is released as a whole.
type heldRow struct {
	once    sync.Once
	holder  *rdma.Peer
	release wire.Release
}

// freeRow tells the backend, once.
func (h *heldRow) freeRow() {
	h.once.Do(func() { _ = h.holder.Send(h.release.Append(nil)) }) // a backend that is gone holds nothing
}

// Bytes is its size.
func (h *Held) Bytes() int { return int(h.place.InNode().Length) }

// Fetch reads the output into memory of this process, which the caller frees. The error wraps ErrUnavailable where the backend holds it no
// more, or is gone.
func (h *Held) Fetch(ctx context.Context) (*Buffer, error) {
	// The data plane reads into registered memory only.
	b, err := h.client.Buffer(h.Bytes())
	if err != nil {
		return nil, err
	}

	// Whoever holds nothing any more says so at once; who is silent is not waited for beyond the lease.
	within := holdFor
	if d, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(d))
	}

	// The read ends by itself in time: the buffer is the data plane's until then.
	ended := make(chan error, 1)
	h.holder.ReadWithin(within, []rdma.Read{{Dst: b.Bytes(), Src: rdma.Remote(h.place.InNode())}}, nil, func(err error) { ended <- err })
	if err := <-ended; err != nil {
		b.Free()
		return nil, fmt.Errorf("%w: output of %d bytes that a backend held: %w", ErrUnavailable, h.Bytes(), err)
	}

	return b, nil
}

// ReleaseHeld gives up the outputs that a backend holds: they must not be named any more. A second call does nothing.
func (r *Result) ReleaseHeld() {
	for _, h := range r.Held {
		if h != nil {
			h.of.freeRow()
			break // the backend takes it for all of the row
		}
	}
	r.Held = nil
}

// takeHeld makes of a call's output what its backend holds.
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

		// All that is held of one result is released together, by the name of its first output.
		if row == nil {
			row = &heldRow{holder: p.holder, release: wire.Release{Key: d.Key, Offset: d.InNode().Offset}}
		}
		r.Held[i] = &Held{client: c, holder: p.holder, place: d, of: row}
	}

	return r, nil
}

// hiddenOutputs is how many outputs a model has that callers do not see.
func (c *Client) hiddenOutputs(m *Model) int {
	_, out := m.Sequence.Hidden()
	return out
}

// releaseStray gives up what a backend holds for a request that has ended.
func releaseStray(holder *rdma.Peer, body []byte) {
	// How many outputs the model has is not known here: the first place that has a key is the row's name.
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

// endParts frees what beginParts has made.
func (r *Request) endParts() {
	if r.composed {
		r.Input.Free()
		r.Input, r.composed = nil, false
	}
}

// composeInput puts a request's parts into registered memory: a table of where each lies, and behind it what lies here.
func (c *Client) composeInput(r *Request) (*Buffer, error) {
	// Of a sequence's model the hidden inputs are parts as well.
	m := c.Model(r.Model, r.Version)
	if m == nil {
		return nil, c.refuseUnknown(r)
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

	// What lies here follows the table, one input after another; what is held is named where it lies.
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

	// The buffer is this request's alone: its table is of no use to another.
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

// TakesParts says whether requests may have Parts: all tensors are of one fixed size.
func (m *Model) TakesParts() bool { return m.fullInput >= 0 && m.fullOutput >= 0 }

// allInputs are what a backend takes: the caller's tensors and those that a sequence adds.
func (m *Model) allInputs() []model.Tensor {
	if len(m.hidden) == 0 {
		return m.Inputs
	}

	return append(append(make([]model.Tensor, 0, len(m.Inputs)+len(m.hidden)), m.Inputs...), m.hidden...)
}
