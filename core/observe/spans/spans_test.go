package spans

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// share is a Rate.
type share float64

func (s *share) Rate() float64      { return float64(*s) }
func (s *share) SetRate(to float64) { *s = share(to) }

// TestChangesHoldTogetherOrNotAtAll: after an error nothing has changed; what is off keeps its share.
func TestChangesHoldTogetherOrNotAtAll(t *testing.T) {
	rate := share(0.01)
	s := NewSettings(&rate)
	for _, c := range []struct {
		level, traced []string
		want          string // of the error; empty: none
		rate          share
	}{
		{nil, []string{"4"}, "", 0.25},
		{[]string{"OFF"}, []string{"x"}, "trace_rate", 0.25},
		{[]string{"TENSORS"}, []string{"2"}, "must be OFF or TIMESTAMPS", 0.25},
		{[]string{"OFF"}, []string{"2"}, "", 0},
		{[]string{"TIMESTAMPS"}, []string{"2"}, "", 0.5},
		{[]string{}, []string{}, "", 0.01},
	} {
		changes := map[string][]string{"trace_rate": c.traced}
		if c.level != nil {
			changes["trace_level"] = c.level
		}
		err := s.Change(changes)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || rate != c.rate {
			t.Errorf("%v: %v and a rate of %v, want %q and %v", changes, err, rate, c.want, c.rate)
		}
	}
	if err := NewSettings(nil).Change(map[string][]string{"trace_level": {"TIMESTAMPS"}}); err == nil || !strings.Contains(err.Error(), "no collector") {
		t.Errorf("without a collector: %v", err)
	}
}

// TestCallIsOfItsCallersTrace: the call and its stages, one after another; nobody's call is none.
func TestCallIsOfItsCallersTrace(t *testing.T) {
	const callers = "0af7651916cd43dd8448eb211c80319c"
	out := tracetest.NewInMemoryExporter()
	tracer := sdk.NewTracerProvider(sdk.WithSyncer(out)).Tracer("test")
	at := time.Now().Add(-time.Second)
	ctx, c := Begin(context.Background(), tracer, nil, at, propagation.MapCarrier{"traceparent": "00-" + callers + "-b7ad6b7169203331-01"})
	if !strings.HasPrefix(c.Name(ctx), "00-"+callers+"-") {
		t.Errorf("the caller is told of %q", c.Name(ctx))
	}
	c.AddStages(ctx, at, []Stage{{"queue", 3 * time.Millisecond}, {"execute", time.Millisecond}})
	c.End(Outcome{Model: "m", Version: "2", Rows: -1, Reason: "dropped", Text: "too late"})

	spans := out.GetSpans()
	if len(spans) != 3 || spans[0].Name != "queue" || spans[1].StartTime != at.Add(3*time.Millisecond) || spans[2].StartTime != at {
		t.Fatalf("spans %+v", spans)
	}
	for _, x := range spans {
		if x.SpanContext.TraceID().String() != callers {
			t.Errorf("%s is of trace %v", x.Name, x.SpanContext.TraceID())
		}
	}
	if spans[2].Status.Description != "too late" || len(spans[2].Attributes) != 5 {
		t.Errorf("the call's span says %+v, %v", spans[2].Status, spans[2].Attributes)
	}

	ctx, none := Begin(context.Background(), nil, nil, at, nil)
	none.AddStages(ctx, at, nil)
	none.End(Outcome{})
	if none.IsRecording() || none.Name(ctx) != "" {
		t.Error("a call that nobody traces has a span")
	}
}
