// Package tracing sends spans to an OpenTelemetry collector by OTLP over HTTP. It decides which requests are traced; what a
// span says is the caller's.
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

// CheckRate says what is wrong with a share of requests.
func CheckRate(rate float64) error {
	if !(rate >= 0 && rate <= 1) { // NaN is neither
		return fmt.Errorf("%v is not allowed: want 0 to 1", rate)
	}
	return nil
}

// CheckEndpoint says what is wrong with a collector's address; empty: there is none.
func CheckEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	if u, err := url.Parse(endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%.80q is not allowed: want the URL of an OTLP collector, such as http://localhost:4318", endpoint)
	}
	return nil
}

// Open returns a provider whose spans go to the collector at endpoint, in batches and beside the requests: a collector
// that is slow or away costs spans, not requests. Of requests without a trace of their own a share is traced, that of rate at the time; one
// that comes with a trace follows its sampled flag. The caller must Shutdown it.
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
