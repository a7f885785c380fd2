package gateway

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
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
	ctx, in.span = g.o.Tracer.Start(ctx, "ModelInfer", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(startOf(ctx)))
	return ctx
}

// endSpan says what became of the call and ends its span.
func (in *inference) endSpan(model string, f *fault) {
	if in.span == nil {
		return
	}
	if in.span.IsRecording() {
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

// traceStages adds what is known of the stages of a request that was answered: wait, from its submission until its batch
// began, inputs fetched, and execute. The output's way back, tens of µs, counts as wait: backends' clocks are their own,
// and a frontend only hears how long the batch took.
func (g *Gateway) traceStages(ctx context.Context, in *inference, submitted time.Time, r *frontend.Result) {
	if in.span == nil || !in.span.IsRecording() {
		return
	}
	answered := submitted.Add(r.Elapsed)
	began := answered.Add(-min(r.Exec, r.Elapsed))
	_, wait := g.o.Tracer.Start(ctx, "wait", trace.WithTimestamp(submitted))
	wait.End(trace.WithTimestamp(began))
	_, execute := g.o.Tracer.Start(ctx, "execute", trace.WithTimestamp(began))
	execute.End(trace.WithTimestamp(answered))
}

// tellSpan names the call's span to a REST client.
func (in *inference) tellSpan(ctx context.Context, h http.Header) {
	if in.span != nil {
		carrier := propagation.MapCarrier{}
		traceContext.Inject(ctx, carrier)
		h.Set("Traceresponse", carrier["traceparent"])
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
