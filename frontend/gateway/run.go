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

// answer holds the outputs of a call until release: raw[i] belongs to inference.outputs[i].
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
func (g *Gateway) run(ctx context.Context, in *inference) (*answer, *fault) {
	began := time.Now()
	if in.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, in.timeout)
		defer cancel()
	}
	requests := make([]frontend.Request, in.rows)
	defer func() {
		for i := range requests {
			if requests[i].Input != nil {
				requests[i].Input.Free()
			}
		}
	}()
	if err := g.fill(in, requests); err != nil {
		g.metrics.end(in.model, in.rows, began, nil, err)
		return nil, counted(err)
	}
	a := &answer{results: make([]frontend.Result, in.rows)}
	errs := make([]error, in.rows)
	g.infer(ctx, requests, a.results, errs)
	for i := range errs {
		g.metrics.end(in.model, 1, began, &a.results[i], errs[i])
	}
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		a.release()
		return nil, counted(errs[i])
	}
	if f := a.gather(in); f != nil {
		a.release()
		return nil, f
	}
	return a, nil
}

// counted is the fault of requests that the metrics have.
func counted(err error) *fault {
	f := *faultOf(err)
	f.counted = true
	return &f
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
func (g *Gateway) fill(in *inference, requests []frontend.Request) error {
	at := make([]int, len(in.inputs)) // how far each input has been used
	ends := make([]int, len(in.inputs))
	for row := range requests {
		n := 0
		for k := range in.inputs {
			ends[k] = at[k] + in.rowBytes(k, at[k])
			n += ends[k] - at[k]
		}
		b, err := g.client.Buffer(n)
		if err != nil {
			return err
		}
		requests[row] = frontend.Request{Model: in.model.Name, Version: in.model.Version, Input: b, Priority: in.priority}
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
	a.raw = make([][]byte, len(in.outputs))
	starts := make([]int, len(in.model.Outputs)+1)
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

// shapeOf is the shape of output i of a call, and its datatype.
func (in *inference) shapeOf(i int) ([]int64, string) {
	o := in.outputs[i]
	t := in.model.Outputs[o.index]
	shape, datatype := t.Shape, t.Datatype
	if o.classes > 0 {
		shape, datatype = []int64{int64(min(o.classes, count(t.Shape)))}, "BYTES"
	}
	if in.batched {
		shape = batchShape(shape, int64(in.rows))
	}
	return shape, datatype
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
