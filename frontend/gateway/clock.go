package gateway

import (
	"context"
	"net"
	"net/http"
	"time"

	"downbeat.dev/core/guard"
)

// A call's clock starts when the first of its bytes is read, so that what the gateway measures and promises is
// what its caller sees: the message's way in counts, and so do the goroutines that take it in.

// startOf is when a call's first byte was read: of a REST call, or of a unary gRPC call's headers. A message of a
// stream has no such moment, its stream was there before: its clock starts now.
func startOf(ctx context.Context) time.Time {
	if call := callOf(ctx); call != nil {
		if !call.began.IsZero() {
			return call.began
		}
		return time.Now()
	}
	if began := guard.CallersConnection(ctx).Began(); !began.IsZero() {
		return began
	}
	return time.Now()
}

// awaitNextCall is a REST server's ConnState: a connection whose call has been answered waits for the first byte of
// the next. A caller that sends it before the answer (pipelining) has its clock started a little later.
func awaitNextCall(c net.Conn, s http.ConnState) {
	if s == http.StateIdle {
		guard.ConnectionOf(c.RemoteAddr()).AwaitCall()
	}
}
