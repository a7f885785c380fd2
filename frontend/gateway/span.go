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

// What the gateway tells of its calls to core/observe/spans: what became of each, and the stages of what it waited for.

// endSpan says what became of the call and ends its span.
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

// traceStages adds a span for each stage of the call's last row, if it was answered: what the call as a whole waited for.
func (g *Gateway) traceStages(ctx context.Context, in *inference, submitted time.Time, calls []frontend.Call) {
	if !in.span.IsRecording() {
		return
	}

	// Rows run beside each other: the slowest is what the call waited for.
	last := slices.MaxFunc(calls, func(a, b frontend.Call) int { return cmp.Compare(a.Result.Elapsed, b.Result.Elapsed) })
	if last.Err == nil && last.Result.Elapsed != 0 {
		in.span.AddStages(ctx, submitted, requestStages(&last.Result))
	}
}

// requestStages are the stages of a request one after another. Of a backend that does not tell them, and of an application's frame,
// two are known: execute, and what is left, whose end the output's way back is counted to.
func requestStages(r *frontend.Result) []spans.Stage {
	s := r.Stages
	if s == (frontend.Stages{}) {
		execute := min(r.Exec, r.Elapsed)
		return []spans.Stage{{Name: "queue", Took: r.Elapsed - execute}, {Name: "execute", Took: execute}}
	}
	return []spans.Stage{{Name: "queue", Took: s.Queue}, {Name: "fetch", Took: s.Fetch}, {Name: "wait", Took: s.Wait},
		{Name: "execute", Took: s.Execute}, {Name: "reply", Took: s.Reply}}
}

// tellCaller names the call's span to a gRPC client.
func (in *inference) tellCaller(ctx context.Context) {
	if name := in.span.Name(ctx); name != "" {
		_ = grpc.SetHeader(ctx, metadata.Pairs("traceresponse", name)) // a stream's has left with its first answer
	}
}

// callersHeaders are the headers of a gRPC call as a propagator reads them. They lie in the call: gRPC's own accessors copy all headers,
// or compare each with the name that is looked for, which is most of what a call costs that is not traced.
type callersHeaders metadata.MD

// headersOf are those of the call that a handler serves; nil outside of one.
func headersOf(ctx context.Context) callersHeaders {
	if c := callOf(ctx); c != nil {
		return c.headers
	}
	return nil
}

// Get returns a header's first value. Names are in lower case, as HTTP/2 has them.
func (c callersHeaders) Get(name string) string {
	if all := c[name]; len(all) > 0 {
		return all[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier; a call's own headers are not changed.
func (callersHeaders) Set(string, string) {}

// Keys implements propagation.TextMapCarrier; W3C Trace Context asks for none.
func (callersHeaders) Keys() []string { return nil }
