package load

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"downbeat.dev/core/arrivals"
)

var errDropped = errors.New("dropped")

// slowThird drops every third request and answers every fifth late.
type slowThird struct{}

func (slowThird) Infer(ctx context.Context, model, seq int) error {
	switch {
	case seq%3 == 0:
		return errDropped
	case seq%5 == 0:
		<-ctx.Done()
		time.Sleep(2 * time.Millisecond)
		return nil
	}
	return nil
}

func plan(n int) []arrivals.Arrival {
	p := make([]arrivals.Arrival, n)
	for i := range p {
		p[i] = arrivals.Arrival{At: time.Duration(i) * 100 * time.Microsecond, Model: int32(i % 2)}
	}
	return p
}

func TestEveryRequestIsAccountedFor(t *testing.T) { synctest.Test(t, testEveryRequest) }

func testEveryRequest(t *testing.T) {
	o := Options{Models: []Model{{"a", 200 * time.Millisecond}, {"b", 200 * time.Millisecond}}, Plan: plan(300)}
	r := Run(t.Context(), slowThird{}, o)
	names, counts := r.Outcomes()
	if r.Sent() != 300 || r.Ended() != 300 {
		t.Fatalf("sent %d, ended %d, want 300 each", r.Sent(), r.Ended())
	}
	var sum int64
	for _, n := range names {
		sum += counts[n]
	}
	if sum != 300 || counts["dropped"] != 100 || counts[Late] < 40 {
		t.Errorf("outcomes %v sum to %d, want 300 with 100 dropped and 40 late", counts, sum)
	}
	var out strings.Builder
	r.Table(&out, func(string) float64 { return 2 })
	for _, want := range []string{"goodput r/s", "p99.9 ms", "sent 300 = ", "100 dropped"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

// stuck never answers before its context ends.
type stuck struct{}

func (stuck) Infer(ctx context.Context, model, seq int) error { <-ctx.Done(); return ctx.Err() }

func TestLatencyCountsFromTheIntendedMoment(t *testing.T) {
	// One place only: all but the first request find it taken, and are counted, not left out.
	o := Options{Models: []Model{{"a", 500 * time.Millisecond}}, Plan: make([]arrivals.Arrival, 20), InFlightMax: 1}
	var counts map[string]int64
	synctest.Test(t, func(t *testing.T) { _, counts = Run(t.Context(), stuck{}, o).Outcomes() })
	if counts[Limit] != 19 || counts[context.DeadlineExceeded.Error()] != 1 {
		t.Errorf("got %v, want 19 at the limit and 1 past its deadline", counts)
	}
}

func TestCancelStopsSending(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := Options{Models: []Model{{"a", time.Second}}, Plan: []arrivals.Arrival{{At: time.Hour}}}
	if r := Run(ctx, stuck{}, o); r.Sent() != 0 || r.BadPercent() != 0 {
		t.Errorf("sent %d after cancel", r.Sent())
	}
}
