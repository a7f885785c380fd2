package gateway

import (
	"context"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"downbeat.dev/frontend/gateway/oip"
)

const callersTrace = "0af7651916cd43dd8448eb211c80319c"

// TestConformanceTrace: calls are spans in their callers' traces, with a span for each stage, over REST and gRPC.
func TestConformanceTrace(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	tracer := provider.Tracer("test")
	names := func() (all []string) {
		for _, s := range spans.GetSpans() {
			all = append(all, s.Name)
			if s.SpanContext.TraceID().String() != callersTrace {
				t.Errorf("span %s is of trace %v", s.Name, s.SpanContext.TraceID())
			}
		}
		spans.Reset()
		return all
	}

	server, _ := rest(t, Options{Tracer: tracer})
	_, h, _ := call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(sumBody), "Traceparent", "00-"+callersTrace+"-b7ad6b7169203331-01")
	if got := h.Get("Traceresponse"); !strings.HasPrefix(got, "00-"+callersTrace+"-") {
		t.Errorf("traceresponse %q", got)
	}
	if got := strings.Join(names(), " "); got != "queue fetch wait execute reply ModelInfer" {
		t.Errorf("REST: spans %s", got)
	}

	// A failed call's span has the reason.
	call(t, "POST", server.URL+"/v2/models/sum/infer", strings.NewReader(strings.Replace(sumBody, "[1,2]}", "[-2,2]}", 1)), "Traceparent", "00-"+callersTrace+"-b7ad6b7169203331-01")
	if s := spans.GetSpans(); len(s) != 1 || s[0].Status.Code != codes.Error || !strings.Contains(s[0].Status.Description, "queue_full") {
		t.Errorf("failed: %+v", s)
	}
	spans.Reset()

	conn, _ := rpc(t, Options{Tracer: tracer})
	ctx := metadata.AppendToOutgoingContext(context.Background(), "traceparent", "00-"+callersTrace+"-b7ad6b7169203331-01")
	var header metadata.MD
	if _, err := oip.NewGRPCInferenceServiceClient(conn).ModelInfer(ctx, sumRequest(floats(1, 2), floats(3, 4)), grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if got := header.Get("traceresponse"); len(got) != 1 || !strings.HasPrefix(got[0], "00-"+callersTrace+"-") {
		t.Errorf("traceresponse %q", got)
	}
	if got := strings.Join(names(), " "); got != "queue fetch wait execute reply ModelInfer" {
		t.Errorf("gRPC: spans %s", got)
	}
}
