package gateway

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
)

// answer holds a call's outputs until release: raw[i] belongs to inference.outputs[i].
type answer struct {
	raw   [][]byte
	calls []frontend.Call
}

// releaseOutputs releases the outputs' memory.
func (a *answer) releaseOutputs() {
	for i := range a.calls {
		a.calls[i].Result.Release()
	}
}

// runCall serves a call: its rows become requests, and their outputs are gathered.
func (g *Gateway) runCall(ctx context.Context, in *inference) (answer, *fault) {
	began := startOf(ctx)

	// The rows count as under way from here until Done.
	if client := clientOf(ctx); client != nil {
		if f := clientFault(client, client.Admit(in.rows, time.Now())); f != nil {
			return answer{}, f
		}
		defer client.Done(in.rows)
	}

	// A timeout starts at the call's first byte, not here.
	if in.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, began.Add(in.timeout))
		defer cancel()
	}

	if f := in.checkSequence(); f != nil {
		return answer{}, f
	}
	if f := in.reserveAnswer(g.o.BodyMax, in.text); f != nil {
		return answer{}, f
	}

	if in.priority == 0 {
		in.priority = in.model.Priority
	}

	r := &in.room
	r.calls = sizedZero(r.calls, in.rows)

	// Deferred before the first buffer is allocated, because an error half way leaves some behind.
	defer in.freeInputs()

	if err := g.fillBuffers(in); err != nil {
		g.metrics.countEnd(in.model, in.rows, began, nil, err)
		return answer{}, countedFault(err)
	}

	submitted := time.Now()
	g.inferRows(ctx, in.model, r.calls)
	g.traceStages(ctx, in, submitted, r.calls)
	in.countCanary(began, r.calls)

	a := answer{calls: r.calls}

	// Every row counts by its own outcome, also if the call fails because of another row.
	for i := range r.calls {
		g.metrics.countEnd(in.model, 1, began, &r.calls[i].Result, r.calls[i].Err)
	}

	f := in.faultOfRows()
	if f == nil {
		f = a.gatherOutputs(in)
	}
	if f == nil {
		f = a.placeOutputs(in)
	}
	if f != nil {
		a.releaseOutputs()
		return answer{}, f
	}
	g.copyCall(in, r.calls)
	return a, nil
}

// faultOfRows returns the fault of a call's rows, if one failed.
func (in *inference) faultOfRows() *fault {
	if f := in.checkLent(); f != nil {
		return f
	}

	// A call has one answer: the first failed row determines it.
	calls := in.room.calls
	if i := slices.IndexFunc(calls, func(c frontend.Call) bool { return c.Err != nil }); i >= 0 {
		return countedFault(calls[i].Err).forModel(in.model)
	}
	return nil
}

// nameAnswering reports the version that answered as the call's version: if the chosen one was unloaded meanwhile,
// the newest answered instead.
func (in *inference) nameAnswering(calls []frontend.Call) {
	last := &calls[len(calls)-1]
	if last.Err != nil || last.Result.Model != in.model.Name || last.Result.Version == in.model.Version {
		return
	}

	// Copy the model, because all calls share it.
	m := *in.model
	m.Version = last.Result.Version
	in.model = &m
}

func (in *inference) freeInputs() {
	for i := range in.room.calls {
		if b := in.room.calls[i].Input; b != nil {
			b.Free()
		}
	}
}

// countedFault returns the fault of requests that the metrics already count.
func countedFault(err error) *fault {
	// Copy the fault, because calls share some faults.
	f := *faultOf(err)
	f.counted = true
	return &f
}

// forModel sets whether it can help to repeat a dropped request for m. With a budget of at least the model's SLO,
// load was the cause; a shorter budget may never be enough.
func (f *fault) forModel(m *frontend.Model) *fault {
	f.retry = f.reason == model.DeadlineCannotBeMet.String() && f.budget >= m.Deadline()
	return f
}

// Do is the client's Do for an application in the gateway's process: its requests count in the metrics and appear on
// the page.
func (g *Gateway) Do(ctx context.Context, r frontend.Request) (frontend.Result, error) {
	began := time.Now()
	result, err := g.client.Do(ctx, r)
	if m := g.client.Model(r.Model, r.Version); m != nil {
		g.metrics.countEnd(m, 1, began, &result, err)
	}
	return result, err
}

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
func (g *Gateway) fillBuffers(in *inference) error {
	r := &in.room
	r.at, r.ends = sizedZero(r.at, len(in.inputs)), sizedZero(r.ends, len(in.inputs))
	at, ends := r.at, r.ends // how far each input has been used
	for row := range r.calls {
		// Texts differ in length, so only a walk through a row gives its size.
		n := 0
		for k := range in.inputs {
			ends[k] = at[k] + in.rowBytes(k, at[k])
			n += ends[k] - at[k]
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
		r.calls[row].Request = frontend.Request{Model: in.model.Name, Version: in.versionAsked(), Newest: in.wanted == "", Input: b, Priority: in.priority, AccuracyFloor: in.floor, Sequence: in.sequence}
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
		part := dst[:end-at]
		dst = dst[len(part):]
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
