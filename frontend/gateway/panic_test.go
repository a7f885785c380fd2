package gateway

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestAPanicEndsOneGRPCCall shows that a call that panics gets an error, and that the log says where it happened.
func TestAPanicEndsOneGRPCCall(t *testing.T) {
	var log strings.Builder
	g := &Gateway{log: slog.New(slog.NewTextHandler(&log, nil))}
	fail := func(any, grpc.ServerStream) error { panic("no such slot") }

	err := g.watchArrivals(nil, silentStream{}, &grpc.StreamServerInfo{FullMethod: "/s/M"}, fail)
	if status.Code(err) != codes.Internal {
		t.Errorf("%v, want an internal error", err)
	}
	for _, want := range []string{"method=/s/M", `panic="no such slot"`, "TestAPanicEndsOneGRPCCall"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log has no %q: %s", want, log.String())
		}
	}
}

type silentStream struct{ grpc.ServerStream }

func (silentStream) Context() context.Context { return context.Background() }
