package gateway

import (
	"context"
	"log/slog"
	"strings"
	"time"
)

// logCall writes the access log's line of an inference call that ended: the call's request id, its trace and its
// outcome. trace is the call's traceparent header (W3C Trace Context), if it has one.
func (g *Gateway) logCall(ctx context.Context, protocol, model string, in *inference, trace string, f *fault) {
	if g.o.Access == nil {
		return
	}
	line := []slog.Attr{slog.String("protocol", protocol), slog.String("model", strings.Clone(model)), // both lie in the call's buffer
		slog.String("id", strings.Clone(in.id)), slog.Int("rows", max(in.rows, 0)), slog.Duration("took", time.Since(startOf(ctx)))}

	// A call that was refused before its model was found has no version.
	if in.model != nil {
		line = append(line, slog.String("version", in.model.Version))
	}
	if id, ok := traceID(trace); ok {
		line = append(line, slog.String("trace", id))
	}

	if c := clientOf(ctx); c != nil {
		line = append(line, slog.String("client", c.Name))
	}

	// The outcome is the reason under which the metrics count the call.
	outcome := "ok"
	if f != nil {
		outcome = f.reason
		line = append(line, slog.Int("status", f.http), slog.String("err", f.text))
	}
	line = append(line, slog.String("outcome", outcome))
	g.o.Access.LogAttrs(ctx, slog.LevelInfo, "call", line...)
}

// traceID returns the trace id of a traceparent header: version, trace id, span id and flags in hexadecimal,
// separated by dashes.
func traceID(traceparent string) (string, bool) {
	parts := strings.Split(traceparent, "-")

	// Later versions of the header may have more parts, never fewer; a trace of zeros is invalid (W3C Trace
	// Context).
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[1]) != 32 || len(parts[2]) != 16 || parts[1] == strings.Repeat("0", 32) {
		return "", false
	}
	for _, c := range []byte(parts[1]) {
		if hexDigit(c) < 0 {
			return "", false
		}
	}
	return strings.Clone(parts[1]), true
}
