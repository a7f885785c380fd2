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

	"downbeat.dev/frontend"
)

// answer is a call's outputs until release: raw[i] belongs to inference.outputs[i].
type answer struct {
	raw     [][]byte
	results []frontend.Result
}

// release gives the outputs' memory back.
func (a *answer) release() {
	for i := range a.results {
		a.results[i].Release()
	}
}

// run serves a call: its rows become requests, and their outputs are gathered.
func (g *Gateway) run(ctx context.Context, in *inference) (answer, *fault) {
	began := time.Now()
	if in.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, in.timeout)
		defer cancel()
	}
	r := &in.room
	r.requests, r.results, r.errs = sized(r.requests, in.rows), sized(r.results, in.rows), sized(r.errs, in.rows)
	defer in.freeInputs()
	if err := g.fill(in); err != nil {
		g.metrics.end(in.model, in.rows, began, nil, err)
		return answer{}, counted(err)
	}
	g.infer(ctx, r.requests, r.results, r.errs)
	a := answer{results: r.results}
	for i := range r.errs {
		g.metrics.end(in.model, 1, began, &r.results[i], r.errs[i])
	}
	if i := slices.IndexFunc(r.errs, func(err error) bool { return err != nil }); i >= 0 {
		a.release()
		return answer{}, counted(r.errs[i])
	}
	if f := a.gather(in); f != nil {
		a.release()
		return answer{}, f
	}
	return a, nil
}

func (in *inference) freeInputs() {
	for i := range in.room.requests {
		if b := in.room.requests[i].Input; b != nil {
			b.Free()
		}
	}
}

// counted is the fault of requests that the metrics have.
func counted(err error) *fault {
	f := *faultOf(err)
	f.counted = true
	return &f
}

// Do is the client's Do for an application in the gateway's process: its requests are counted in
// the metrics and seen on the page.
func (g *Gateway) Do(ctx context.Context, r frontend.Request) (frontend.Result, error) {
	began := time.Now()
	result, err := g.client.Do(ctx, r)
	if m := g.client.Model(r.Model, r.Version); m != nil {
		g.metrics.end(m, 1, began, &result, err)
	}
	return result, err
}

// infer asks for all rows; one needs no bookkeeping.
func (g *Gateway) infer(ctx context.Context, requests []frontend.Request, results []frontend.Result, errs []error) {
	if len(requests) == 1 {
		results[0], errs[0] = g.client.Do(ctx, requests[0])
		return
	}
	g.client.DoAll(ctx, requests, results, errs)
}

// fill copies each row of the inputs to a registered buffer: the only copy that the gateway makes.
func (g *Gateway) fill(in *inference) error {
	r := &in.room
	r.at, r.ends = sized(r.at, len(in.inputs)), sized(r.ends, len(in.inputs))
	at, ends := r.at, r.ends // how far each input has been used
	for row := range r.requests {
		n := 0
		for k := range in.inputs {
			ends[k] = at[k] + in.rowBytes(k, at[k])
			n += ends[k] - at[k]
		}
		b, err := g.client.Buffer(n)
		if err != nil {
			return err
		}
		r.requests[row] = frontend.Request{Model: in.model.Name, Version: in.model.Version, Input: b, Priority: in.priority}
		dst := b.Bytes()[:0]
		for k := range in.inputs {
			dst = append(dst, in.inputs[k].raw[at[k]:ends[k]]...)
			at[k] = ends[k]
		}
	}
	return nil
}

// rowBytes is the size of the row of input k that begins at byte at.
func (in *inference) rowBytes(k, at int) int {
	raw, want := in.inputs[k].raw, in.model.Inputs[k]
	if want.Datatype != "BYTES" {
		return len(raw) / in.rows
	}
	return bytesPrefix(raw[at:], count(want.Shape))
}

// gather finds each requested output in the rows' results. A single row is not copied.
func (a *answer) gather(in *inference) *fault {
	r := &in.room
	r.raw, r.starts = sized(r.raw, len(in.outputs)), sized(r.starts, len(in.model.Outputs)+1)
	a.raw = r.raw
	starts := r.starts
	for row := range a.results {
		data := a.results[row].Data
		if !split(in.model, data, starts) {
			return refusal(http.StatusInternalServerError, codes.Internal, "execution_failed", "model "+strconv.Quote(in.model.Name)+": the backend's output has a wrong size")
		}
		for i, o := range in.outputs {
			part := data[starts[o.index]:starts[o.index+1]]
			switch {
			case o.classes > 0:
				a.raw[i] = appendClasses(a.raw[i], part, in.model.Outputs[o.index].Datatype, o.classes)
			case in.rows == 1:
				a.raw[i] = part
			default:
				a.raw[i] = append(slices.Grow(a.raw[i], (in.rows-row)*len(part)), part...)
			}
		}
	}
	return nil
}

// split finds where each output of a result begins; starts gets one entry more than outputs.
func split(m *frontend.Model, data []byte, starts []int) bool {
	at := 0
	for i, t := range m.Outputs {
		starts[i] = at
		n, err := frontend.TensorBytes(t)
		if err == nil && n < 0 {
			n = bytesPrefix(data[at:], count(t.Shape))
		}
		if err != nil || n < 0 || n > len(data)-at {
			return false
		}
		at += n
	}
	starts[len(m.Outputs)] = at
	return at == len(data)
}

// shapeOf is the shape of output i of a call, valid until the next call of it, and its datatype.
func (in *inference) shapeOf(i int) ([]int64, string) {
	o := in.outputs[i]
	t := in.model.Outputs[o.index]
	shape := in.room.shapes[:0]
	if in.batched {
		shape = append(shape, int64(in.rows))
	}
	if o.classes > 0 {
		in.room.shapes = append(shape, int64(min(o.classes, count(t.Shape))))
		return in.room.shapes, "BYTES"
	}
	in.room.shapes = append(shape, t.Shape...)
	return in.room.shapes, t.Datatype
}

// appendClasses appends a row's n highest values as Triton's classification extension prints them:
// "value:index", in BYTES form. NaN sorts last.
func appendClasses(dst, raw []byte, datatype string, n int) []byte {
	size, _ := frontend.ElementSize(datatype)
	order := make([]int, len(raw)/size)
	for i := range order {
		order[i] = i
	}
	at := func(i int) float64 {
		v := value(raw[i*size:(i+1)*size], datatype)
		if math.IsNaN(v) {
			return math.Inf(-1)
		}
		return v
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(at(b), at(a)) })
	for _, i := range order[:min(n, len(order))] {
		text := strconv.AppendFloat(nil, value(raw[i*size:(i+1)*size], datatype), 'f', 6, 64)
		text = strconv.AppendInt(append(text, ':'), int64(i), 10)
		dst = append(le.AppendUint32(dst, uint32(len(text))), text...)
	}
	return dst
}
