package gateway

import (
	"context"
	"slices"
	"time"

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
	if f := in.reserveMemory(g.o.BodyMax); f != nil {
		return answer{}, f
	}

	if in.priority == 0 {
		in.priority = in.model.Priority
	}

	r := &in.room
	r.calls = sizedZero(r.calls, in.rows)

	// Deferred before the first buffer is allocated, because an error half way leaves some behind.
	defer in.freeInputs()

	decoding, ended := in.untilDeadline(ctx)
	defer ended()
	if err := g.fillBuffers(decoding, in); err != nil {
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

	// What is wrong with a picture tells its client more than how the scheduler ended the request meanwhile.
	if in.undecoded != nil {
		return countedFault(in.undecoded)
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
