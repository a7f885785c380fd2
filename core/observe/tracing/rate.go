package tracing

import (
	"sync/atomic"

	"go.opentelemetry.io/otel/sdk/trace"

	"downbeat.dev/core/observe/spans"
)

// Rate is the share of requests without a trace of their own that are traced. It may be changed concurrently.
type Rate struct{ now atomic.Pointer[ratio] }

type ratio struct {
	trace.Sampler
	share float64
}

// NewRate returns a rate with a share from 0 to 1.
func NewRate(share float64) *Rate {
	r := new(Rate)
	r.SetRate(share)
	return r
}

// Rate returns the share.
func (r *Rate) Rate() float64 { return r.now.Load().share }

// SetRate replaces the share for later requests.
func (r *Rate) SetRate(share float64) { r.now.Store(&ratio{trace.TraceIDRatioBased(share), share}) }

// ShouldSample implements trace.Sampler.
func (r *Rate) ShouldSample(p trace.SamplingParameters) trace.SamplingResult {
	// Begin has already sampled this call.
	if spans.IsDrawn(p.ParentContext) {
		return trace.AlwaysSample().ShouldSample(p)
	}
	return r.now.Load().ShouldSample(p)
}

// Description implements trace.Sampler.
func (r *Rate) Description() string { return "a share that may change" }
