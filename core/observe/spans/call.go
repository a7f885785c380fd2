// Package spans creates the spans of a call: one for the call within its caller's trace, and one for each of its
// stages. It also holds the settings that change the share of traced calls while a process serves. The part that
// answers a call reports its outcome; package tracing sends the spans to a collector.
package spans

import (
	"context"
	"math/rand/v2"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// traceContext reads and writes W3C Trace Context.
var traceContext propagation.TraceContext

// Call is the span of one call. A nil Call is not traced, and its methods do nothing. Call is not safe for concurrent
// use.
type Call struct {
	tracer trace.Tracer
	span   trace.Span
}

// Outcome is the reported end of a call.
type Outcome struct {
	Model, Version, RequestID string
	Rows                      int
	Reason, Text              string // why there is no answer; empty: there is one
}

// Stage is one stage of a call, after the previous one.
type Stage struct {
	Name string
	Took time.Duration
}

// Begin starts the span of a call that arrived at a time, within the trace named by its caller's headers. Use the
// returned context for the call's work. The Call is nil without a tracer and if the span would not be recorded. rate,
// unless nil, samples the calls without a trace before anything is allocated for them.
func Begin(ctx context.Context, tracer trace.Tracer, rate Rate, at time.Time, caller propagation.TextMapCarrier) (context.Context, *Call) {
	if tracer == nil {
		return ctx, nil
	}

	drawn := ctx
	if rate != nil && caller.Get("traceparent") == "" {
		if rand.Float64() >= rate.Rate() {
			return ctx, nil
		}
		drawn = context.WithValue(ctx, drawnKey{}, true)
	}

	// The span begins with the call's first byte, before this line.
	parent := traceContext.Extract(drawn, caller)
	traced, span := tracer.Start(parent, "ModelInfer", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at))

	// Most calls are not recorded, so do nothing more for them.
	if !span.IsRecording() {
		return ctx, nil
	}
	return traced, &Call{tracer, span}
}

type drawnKey struct{}

// IsDrawn reports to a sampler that Begin has sampled the call, so that it must be traced.
func IsDrawn(ctx context.Context) bool { return ctx != nil && ctx.Value(drawnKey{}) != nil }

// IsRecording reports whether the call's span is recorded.
func (c *Call) IsRecording() bool { return c != nil && c.span.IsRecording() }

// End records the call's outcome and ends its span. It clones the texts, so that callers may reuse their memory.
func (c *Call) End(o Outcome) {
	if c == nil {
		return
	}
	c.span.SetAttributes(attribute.String("downbeat.model", strings.Clone(o.Model)), attribute.Int("downbeat.rows", max(o.Rows, 0)),
		attribute.String("downbeat.request_id", strings.Clone(o.RequestID)))
	if o.Version != "" {
		c.span.SetAttributes(attribute.String("downbeat.version", o.Version))
	}
	if o.Reason != "" {
		c.span.SetAttributes(attribute.String("downbeat.reason", o.Reason))
		c.span.SetStatus(codes.Error, strings.Clone(o.Text))
	}
	c.span.End()
}

// AddStages adds a span for each stage, one after another, starting at from.
func (c *Call) AddStages(ctx context.Context, from time.Time, stages []Stage) {
	if !c.IsRecording() {
		return
	}
	for _, stage := range stages {
		_, span := c.tracer.Start(ctx, stage.Name, trace.WithTimestamp(from))
		from = from.Add(stage.Took)
		span.End(trace.WithTimestamp(from))
	}
}

// Name returns the span's identity for the header traceresponse; empty if the call is not traced.
func (c *Call) Name(ctx context.Context) string {
	if c == nil {
		return ""
	}
	carrier := propagation.MapCarrier{}
	traceContext.Inject(ctx, carrier)
	return carrier["traceparent"]
}
