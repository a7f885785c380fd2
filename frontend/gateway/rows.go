package gateway

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// inferRows sends all rows; a single row needs no bookkeeping.
func (g *Gateway) inferRows(ctx context.Context, m *frontend.Model, calls []frontend.Call) {
	if m.Platform == platformApplication {
		g.runFrames(ctx, calls)
		return
	}
	if len(calls) == 1 {
		calls[0].Result, calls[0].Err = g.client.Do(ctx, calls[0].Request)
		return
	}

	// A call is answered as a whole: after one row fails, running the others is useless.
	failed := g.client.DoWhole(ctx, calls)
	for i := range calls {
		if calls[i].Err != nil {
			calls[i].Err = failed // rows canceled because of it end for the same reason
		}
	}
}

// fillBuffers copies each row of the inputs to a registered buffer, the gateway's only copy, or lends it in place.
// Pictures are left to the rows' Prepare hooks, which run in a context of their own.
func (g *Gateway) fillBuffers(decoding context.Context, in *inference) error {
	r := &in.room
	r.at, r.ends = sizedZero(r.at, len(in.inputs)), sizedZero(r.ends, len(in.inputs))
	at, ends := r.at, r.ends // how far each input has been used
	for row := range r.calls {
		// Texts differ in length, so only a walk through a row gives its size.
		n := 0
		for k := range in.inputs {
			ends[k] = at[k] + in.rowBytes(k, at[k])
			n += in.placedBytes(k)
		}

		if most := in.model.InputMax; most > 0 && n > int(most) {
			return invalidFault("model %q: inputs: row %d has %d bytes, the lengths of BYTES elements included: must be at most %d (parameter bytes_max of the model's configuration)",
				in.model.Name, row, n, most)
		}

		b := in.lendRow(g.client, n)
		if b == nil {
			var err error
			if b, err = in.copyRow(g.client, n); err != nil {
				return err
			}
		}
		r.calls[row].Request = frontend.Request{Model: in.model.Name, Version: in.versionAsked(), Newest: in.wanted == "", Input: b, Priority: in.priority, AccuracyFloor: in.floor, Sequence: in.sequence,
			Prepare: g.pictureHook(decoding, in, row)}
		copy(at, ends)
	}
	return nil
}

// copyRow copies the row of n bytes between room.at and room.ends to registered memory.
func (in *inference) copyRow(client *frontend.Client, n int) (*frontend.Buffer, error) {
	b, err := client.Buffer(n)
	if err != nil {
		return nil, err
	}

	dst := b.Bytes()
	for k := range in.inputs {
		t, at, end := &in.inputs[k], in.room.at[k], in.room.ends[k]
		part := dst[:in.placedBytes(k)]
		dst = dst[len(part):]
		if in.isPicture(k) {
			continue
		}
		if t.place.of == nil {
			copy(part, t.raw[at:end])
			continue
		}

		// Read shared memory directly into the buffer.
		if err := t.place.of.readAt(part, t.place.offset+int64(at)); err != nil {
			b.Free()
			return nil, err
		}
	}
	return b, nil
}

// rowBytes returns the size of the row of input k that begins at byte at.
func (in *inference) rowBytes(k, at int) int {
	t, want := &in.inputs[k], in.model.Inputs[k]
	if t.isPicture(&want) {
		return model.TextsBytes(t.raw[at:], 1)
	}
	if !want.Varies() {
		return t.bytes() / in.rows
	}
	return model.TextsBytes(t.raw[at:], want.RowElements())
}

// gatherOutputs finds each requested output in the rows' results. A single row is not copied.
func (a *answer) gatherOutputs(in *inference) *fault {
	in.nameAnswering(a.calls)

	r := &in.room
	r.raw, r.starts = sizedZero(r.raw, len(in.outputs)), sizedZero(r.starts, len(in.model.Outputs)+1)
	a.raw = r.raw
	starts := r.starts

	for row := range a.calls {
		data := a.calls[row].Result.Data

		// The bytes come from a backend: check their sizes before anything points into them.
		if !splitOutputs(in.model, data, starts) {
			return refusalFault(http.StatusInternalServerError, codes.Internal, "execution_failed", "model "+strconv.Quote(in.model.Name)+": the backend's output has a wrong size")
		}

		for i, o := range in.outputs {
			part := data[starts[o.index]:starts[o.index+1]]
			switch {
			case o.classes > 0:
				a.raw[i] = appendClasses(a.raw[i], part, &in.model.Outputs[o.index], o.classes)
			case in.rows == 1:
				a.raw[i] = part
			default:
				// The first row allocates capacity for those that follow.
				a.raw[i] = append(slices.Grow(a.raw[i], (in.rows-row)*len(part)), part...)
			}
		}
	}
	return nil
}

// splitOutputs finds where each output of a result begins; starts has one entry more than outputs.
func splitOutputs(m *frontend.Model, data []byte, starts []int) bool {
	at := 0
	for i, t := range m.Outputs {
		starts[i] = at
		n := t.RowBytes()
		if t.Varies() {
			n = model.TextsBytes(data[at:], t.RowElements())
		}
		if n < 0 || n > len(data)-at {
			return false
		}
		at += n
	}
	starts[len(m.Outputs)] = at
	return at == len(data)
}

// shapeOf returns the shape of output i of a call, valid until the next call of shapeOf, and its datatype.
func (in *inference) shapeOf(i int) ([]int64, model.Datatype) {
	o := in.outputs[i]
	t := in.model.Outputs[o.index]
	shape := in.room.shapes[:0]
	if in.batched {
		shape = append(shape, int64(in.rows))
	}

	// The extension returns classes as texts, whatever the tensor's datatype is.
	if o.classes > 0 {
		in.room.shapes = append(shape, int64(min(o.classes, t.RowElements())))
		return in.room.shapes, model.Bytes
	}
	in.room.shapes = append(shape, t.Shape...)
	return in.room.shapes, t.Datatype
}

// appendClasses appends a row's n highest values as Triton's classification extension prints them:
// "value:index", or "value:index:label" where the output has labels, in BYTES form. NaN sorts last.
func appendClasses(dst, raw []byte, t *model.Tensor, n int) []byte {
	datatype := t.Datatype
	size := datatype.Size()
	order := make([]int, len(raw)/size)
	for i := range order {
		order[i] = i
	}

	// NaN sorts last.
	at := func(i int) float64 {
		v := valueOf(raw[i*size:(i+1)*size], datatype)
		if math.IsNaN(v) {
			return math.Inf(-1)
		}
		return v
	}

	// Stable, so that equal values stay in the order of their index.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at(b), at(a)) })
	for _, i := range order[:min(n, len(order))] {
		text := strconv.AppendFloat(nil, valueOf(raw[i*size:(i+1)*size], datatype), 'f', 6, 64)
		text = strconv.AppendInt(append(text, ':'), int64(i), 10)
		if i < len(t.Labels) {
			text = append(append(text, ':'), t.Labels[i]...)
		}
		dst = append(le.AppendUint32(dst, uint32(len(text))), text...)
	}
	return dst
}
