package gateway

import (
	"context"
	"net"
	"net/http"
	"time"

	"downbeat.dev/core/guard"
)

// A call's clock starts when its first byte is read, so that the gateway measures and promises what the caller sees:
// the time includes the message's transfer and the goroutines that read it.

// startOf returns when a call's first byte was read: of a REST call, or of a unary gRPC call's headers. A message of
// a stream has no such moment, because its stream existed before: its clock starts now.
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

// awaitNextCall is a REST server's ConnState: after its answer, a connection waits for the first byte of the next
// call. The clock of a caller that sends that byte before the answer (pipelining) starts slightly late.
func awaitNextCall(c net.Conn, s http.ConnState) {
	if s == http.StateIdle {
		guard.ConnectionOf(c.RemoteAddr()).AwaitCall()
	}
}
