// Package spans says what is traced of a call, and how much: a span of the call as part of its caller's trace, one for each stage of
// it, and the settings that change the share of calls that are traced while a process serves. Whoever answers calls tells what
// became of them; package tracing sends spans to a collector.
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

// Call is the span of one call. A nil Call is of one that nobody traces: its methods do nothing. Not safe for concurrent use.
type Call struct {
	tracer trace.Tracer
	span   trace.Span
}

// Outcome is what is told of a call at its end.
type Outcome struct {
	Model, Version, RequestID string
	Rows                      int
	Reason, Text              string // why there is no answer; no reason: there is one
}

// Stage is one part of a call's way, after the one before.
type Stage struct {
	Name string
	Took time.Duration
}

// Begin begins the span of a call that came at a moment, as part of the trace that its caller's headers name. The context is for
// what the call does. Without a tracer, and where the span would not be recorded, there is none. A rate, if there is one, draws
// the calls that come without a trace, before anything is made for them.
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

	// The call's first byte came before this line: the span begins there.
	parent := traceContext.Extract(drawn, caller)
	traced, span := tracer.Start(parent, "ModelInfer", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at))

	// Most calls are not recorded: nothing more is done for them.
	if !span.IsRecording() {
		return ctx, nil
	}
	return traced, &Call{tracer, span}
}

type drawnKey struct{}

// IsDrawn tells a sampler that Begin has drawn the call: it is traced.
func IsDrawn(ctx context.Context) bool { return ctx != nil && ctx.Value(drawnKey{}) != nil }

// IsRecording says whether anybody will see what is told of the call.
func (c *Call) IsRecording() bool { return c != nil && c.span.IsRecording() }

// End says what became of the call and ends its span. Texts are cloned: callers may use their memory again.
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

// AddStages adds a span for each stage, one after another from a moment on.
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

// Name is how the caller is told of the span in the header traceresponse; empty: nobody traces.
func (c *Call) Name(ctx context.Context) string {
	if c == nil {
		return ""
	}
	carrier := propagation.MapCarrier{}
	traceContext.Inject(ctx, carrier)
	return carrier["traceparent"]
}
