package tracing

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"downbeat.dev/core/observe/spans"
)

// TestSpansReachTheCollector: a collector gets what was traced, by OTLP, under the service's name.
func TestSpansReachTheCollector(t *testing.T) {
	got := make(chan *collector.ExportTraceServiceRequest, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m := new(collector.ExportTraceServiceRequest)
		if err := proto.Unmarshal(body, m); err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		got <- m
	}))
	defer server.Close()

	p, err := Open(t.Context(), server.URL, NewRate(1), "downbeat", "v1")
	if err != nil {
		t.Fatal(err)
	}
	_, span := p.Tracer("test").Start(t.Context(), "ModelInfer")
	span.End()
	if err := p.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	m := <-got
	if name := m.ResourceSpans[0].Resource.Attributes[0].Value.GetStringValue(); name != "downbeat" {
		t.Errorf("service %q", name)
	}
	if s := m.ResourceSpans[0].ScopeSpans[0].Spans; len(s) != 1 || s[0].Name != "ModelInfer" {
		t.Errorf("spans %v", s)
	}
}

// TestSampling: with a rate of 0 only requests whose caller traces them are; with a collector that is away nobody waits.
func TestSampling(t *testing.T) {
	p, err := Open(t.Context(), "http://127.0.0.1:1", NewRate(0), "downbeat", "v1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	defer p.Shutdown(ctx)
	if _, span := p.Tracer("test").Start(t.Context(), "mine"); span.IsRecording() {
		t.Error("a rate of 0 traces")
	}
	parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, Remote: true})
	if _, span := p.Tracer("test").Start(trace.ContextWithSpanContext(t.Context(), parent), "theirs"); !span.IsRecording() || span.SpanContext().TraceID() != parent.TraceID() {
		t.Error("a caller's trace is not followed")
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		rate     float64
		want     string // of an error
	}{{"", 0.01, ""}, {"http://localhost:4318", 1, ""}, {"https://collector/otlp", 0, ""}, {"localhost:4318", 1, "want the URL of an OTLP collector"},
		{"ftp://x", 1, "want the URL of an OTLP collector"}, {"", -1, "-1 is not allowed: want 0 to 1"}, {"", 2, "2 is not allowed: want 0 to 1"}} {
		if err := errors.Join(CheckEndpoint(c.endpoint), CheckRate(c.rate)); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %v: %v, want %q in it", c.endpoint, c.rate, err, c.want)
		}
	}
}

// TestCallsAreDrawnOnce: of calls without a trace the rate's share is recorded, however they are drawn, and of those with one what
// their callers say.
func TestCallsAreDrawnOnce(t *testing.T) {
	const calls = 20_000
	rate := NewRate(0.1)
	p, err := Open(t.Context(), "http://127.0.0.1:1", rate, "downbeat", "v1")
	if err != nil {
		t.Fatal(err)
	}
	tracer := p.Tracer("test")
	count := func(headers propagation.MapCarrier) (n int) {
		for range calls {
			// It is not ended, so that nothing is sent.
			if _, c := spans.Begin(t.Context(), tracer, rate, time.Now(), headers); c.IsRecording() {
				n++
			}
		}
		return n
	}
	if n := count(nil); n < calls*8/100 || n > calls*12/100 {
		t.Errorf("%d of %d calls are recorded at a rate of 10 %%", n, calls)
	}
	const theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"
	if yes, no := count(propagation.MapCarrier{"traceparent": theirs + "1"}), count(propagation.MapCarrier{"traceparent": theirs + "0"}); yes != calls || no != 0 {
		t.Errorf("%d of %d calls are recorded whose callers trace them, %d of those whose callers do not", yes, calls, no)
	}
}
