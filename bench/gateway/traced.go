package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"

	"downbeat.dev"
)

// runTraced compares a gateway that traces its share of the calls with one that traces none. Each has its own system
// behind it.
func (c Config) runTraced(ctx context.Context, serve downbeat.Config) ([]Row, error) {
	plain, err := downbeat.Start(ctx, serve)
	if err != nil {
		return nil, err
	}
	defer plain.Close()

	// The collector receives spans over HTTP, as a real one does, and discards them; its work counts as tracing's.
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	defer collector.Close()
	serve.Protocol.Trace = collector.URL
	traced, err := downbeat.Start(ctx, serve)
	if err != nil {
		return nil, err
	}
	defer traced.Close()

	a, b := traced.Config(), plain.Config()
	return c.compareAll(ctx, []contest{
		{"REST", []rival{{"traced", c.restCallers, a.HTTP}, {"untraced", c.restCallers, b.HTTP}}},
		{"gRPC", []rival{{"traced", c.grpcCallers, a.GRPC}, {"untraced", c.grpcCallers, b.GRPC}}},
	})
}
