package gateway

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"downbeat.dev/frontend"
)

// traceContext reads and writes W3C Trace Context.
var traceContext propagation.TraceContext

// startSpan begins the span of an inference call, as part of the trace that its caller's headers name.
func (g *Gateway) startSpan(ctx context.Context, in *inference, caller propagation.TextMapCarrier) context.Context {
	if g.o.Tracer == nil {
		return ctx
	}
	ctx = traceContext.Extract(ctx, caller)

	// The call's first byte came before this line: the span begins there.
	ctx, in.span = g.o.Tracer.Start(ctx, "ModelInfer", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(startOf(ctx)))
	return ctx
}

// endSpan says what became of the call and ends its span.
func (in *inference) endSpan(model string, f *fault) {
	if in.span == nil {
		return
	}
	if in.span.IsRecording() {
		// Texts are cloned: they lie in the call's buffer, and spans leave after it.
		in.span.SetAttributes(attribute.String("downbeat.model", strings.Clone(model)), attribute.Int("downbeat.rows", max(in.rows, 0)),
			attribute.String("downbeat.request_id", strings.Clone(in.id)))
		if in.model != nil {
			in.span.SetAttributes(attribute.String("downbeat.version", in.model.Version))
		}
		if f != nil {
			in.span.SetAttributes(attribute.String("downbeat.reason", f.reason))
			in.span.SetStatus(codes.Error, strings.Clone(f.text))
		}
	}
	in.span.End()
	in.span = nil
}

// traceStages adds a span for each stage of the call's last row, if it was answered: what the call as a whole waited for.
func (g *Gateway) traceStages(ctx context.Context, in *inference, submitted time.Time, calls []frontend.Call) {
	if in.span == nil || !in.span.IsRecording() {
		return
	}

	// Rows run beside each other: the slowest is what the call waited for.
	last := slices.MaxFunc(calls, func(a, b frontend.Call) int { return cmp.Compare(a.Result.Elapsed, b.Result.Elapsed) })
	if last.Err != nil || last.Result.Elapsed == 0 {
		return
	}

	at := submitted
	for _, stage := range requestStages(&last.Result) {
		_, span := g.o.Tracer.Start(ctx, stage.name, trace.WithTimestamp(at))
		at = at.Add(stage.took)
		span.End(trace.WithTimestamp(at))
	}
}

// requestStage is one part of a request's way.
type requestStage struct {
	name string
	took time.Duration
}

// requestStages are the stages of a request one after another. Of a backend that does not tell them, and of an application's frame,
// two are known: execute, and what is left, whose end the output's way back is counted to.
func requestStages(r *frontend.Result) []requestStage {
	s := r.Stages
	if s == (frontend.Stages{}) {
		execute := min(r.Exec, r.Elapsed)
		return []requestStage{{"queue", r.Elapsed - execute}, {"execute", execute}}
	}
	return []requestStage{{"queue", s.Queue}, {"fetch", s.Fetch}, {"wait", s.Wait}, {"execute", s.Execute}, {"reply", s.Reply}}
}

// tellSpan names the call's span to a REST client.
func (in *inference) tellSpan(ctx context.Context, h http.Header) {
	if in.span != nil {
		carrier := propagation.MapCarrier{}
		traceContext.Inject(ctx, carrier)
		h.Set("Traceresponse", carrier["traceparent"])
	}
}

// tellCaller names the call's span to a gRPC client.
func (in *inference) tellCaller(ctx context.Context) {
	if in.span != nil {
		carrier := propagation.MapCarrier{}
		traceContext.Inject(ctx, carrier)
		_ = grpc.SetHeader(ctx, metadata.Pairs("traceresponse", carrier["traceparent"])) // a stream's has left with its first answer
	}
}

// metadataCarrier are the headers of a gRPC call as a propagator wants them.
type metadataCarrier metadata.MD

// Get returns a header's first value.
func (c metadataCarrier) Get(key string) string {
	if all := metadata.MD(c).Get(key); len(all) > 0 {
		return all[0]
	}
	return ""
}

// Set sets a header.
func (c metadataCarrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys returns the headers' names.
func (c metadataCarrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for key := range c {
		keys = append(keys, key)
	}
	return keys
}

// callerOf are the headers of a gRPC call.
func callerOf(ctx context.Context) metadataCarrier {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadataCarrier(md)
}
