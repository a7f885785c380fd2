// Package tracing sends spans to an OpenTelemetry collector by OTLP over HTTP. It samples requests; the callers
// define the spans.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// CheckRate returns an error unless rate is a share from 0 to 1.
func CheckRate(rate float64) error {
	if !(rate >= 0 && rate <= 1) { // false for NaN, too
		return fmt.Errorf("%v is not allowed: want 0 to 1", rate)
	}
	return nil
}

// CheckEndpoint returns an error for an invalid collector address; empty means no collector.
func CheckEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%.80q is not allowed: want the URL of an OTLP collector, such as http://localhost:4318", endpoint)
	}
	return nil
}

// Open returns a provider that sends spans to the collector at endpoint, in batches in the background: a slow or
// missing collector costs spans, not requests. It samples requests without a trace at rate's present share; a request
// with a trace follows its sampled flag. The caller must call Shutdown.
func Open(ctx context.Context, endpoint string, rate *Rate, service, version string) (*trace.TracerProvider, error) {
	if err := errors.Join(CheckEndpoint(endpoint), CheckRate(rate.Rate())); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}

	to, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}

	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(to.JoinPath("v1", "traces").String()))
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}

	about := resource.NewSchemaless(attribute.String("service.name", service), attribute.String("service.version", version))
	return trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(about),
		trace.WithSampler(trace.ParentBased(rate))), nil
}
