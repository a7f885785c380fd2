package gateway

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"downbeat.dev/core/observe/spans"
	"downbeat.dev/frontend"
)

// This file reports calls to core/observe/spans: each call's outcome, and the stages of the request that it waited
// for.

// endSpan records the call's outcome and ends its span.
func (in *inference) endSpan(model string, f *fault) {
	if in.span == nil {
		return
	}
	o := spans.Outcome{Model: model, RequestID: in.id, Rows: in.rows}
	if in.model != nil {
		o.Version = in.model.Version
	}
	if f != nil {
		o.Reason, o.Text = f.reason, f.text
	}
	in.span.End(o)
	in.span = nil
}

// traceStages adds a span for each stage of the call's last row, if it was answered: the whole call waited for that
// row.
func (g *Gateway) traceStages(ctx context.Context, in *inference, submitted time.Time, calls []frontend.Call) {
	if !in.span.IsRecording() {
		return
	}

	// Rows run concurrently: the call waited for the slowest.
	last := slices.MaxFunc(calls, func(a, b frontend.Call) int { return cmp.Compare(a.Result.Elapsed, b.Result.Elapsed) })
	if last.Err == nil && last.Result.Elapsed != 0 {
		in.span.AddStages(ctx, submitted, requestStages(&last.Result))
	}
}

// requestStages returns a request's consecutive stages. If the backend reports none, or for an application's frame,
// two are known: execute, and the rest as queue, which then includes the output's way back.
func requestStages(r *frontend.Result) []spans.Stage {
	s := r.Stages
	if s == (frontend.Stages{}) {
		execute := min(r.Exec, r.Elapsed)
		return []spans.Stage{{Name: "queue", Took: r.Elapsed - execute}, {Name: "execute", Took: execute}}
	}
	return []spans.Stage{{Name: "queue", Took: s.Queue}, {Name: "fetch", Took: s.Fetch}, {Name: "wait", Took: s.Wait},
		{Name: "execute", Took: s.Execute}, {Name: "reply", Took: s.Reply}}
}

// tellCaller sends the name of the call's span to a gRPC client.
func (in *inference) tellCaller(ctx context.Context) {
	if name := in.span.Name(ctx); name != "" {
		_ = grpc.SetHeader(ctx, metadata.Pairs("traceresponse", name)) // a stream's left with its first answer
	}
}

// callersHeaders are the headers of a gRPC call in the form that a propagator reads. They are the call's own: gRPC's
// accessors copy all headers, or compare each with the name, which is most of the cost of an untraced call.
type callersHeaders metadata.MD

// headersOf returns the headers of the call that a handler serves; nil outside of one.
func headersOf(ctx context.Context) callersHeaders {
	if c := callOf(ctx); c != nil {
		return c.headers
	}
	return nil
}

// Get returns a header's first value. Names are in lower case, as in HTTP/2.
func (c callersHeaders) Get(name string) string {
	if all := c[name]; len(all) > 0 {
		return all[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier; it does nothing, because a call's own headers do not change.
func (callersHeaders) Set(string, string) {}

// Keys implements propagation.TextMapCarrier; W3C Trace Context does not need it.
func (callersHeaders) Keys() []string { return nil }
