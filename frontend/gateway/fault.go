package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/core/sched"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// fault is an answer other than the one asked for, as both protocols tell it.
type fault struct {
	http   int
	code   codes.Code
	reason string // how metrics label it: a sched.Reason, or invalid_argument, not_found …
	text   string

	counted bool // the requests behind it are in the metrics
}

func (f *fault) Error() string { return f.text }

// GRPCStatus makes a fault usable where grpc expects a status.
func (f *fault) GRPCStatus() *status.Status { return status.New(f.code, f.text) }

// httpCanceled is what the log of a client that went away shows; nobody reads the answer.
const httpCanceled = 499

func refusal(status int, code codes.Code, reason, text string) *fault {
	return &fault{http: status, code: code, reason: reason, text: text}
}

func invalid(format string, args ...any) *fault {
	return refusal(http.StatusBadRequest, codes.InvalidArgument, "invalid_argument", fmt.Sprintf(format, args...))
}

func notFound(format string, args ...any) *fault {
	return refusal(http.StatusNotFound, codes.NotFound, "unknown_model", fmt.Sprintf(format, args...))
}

func tooLarge(format string, args ...any) *fault {
	return refusal(http.StatusRequestEntityTooLarge, codes.ResourceExhausted, "too_large", fmt.Sprintf(format, args...))
}

// faultOf tells what the end of a request means to a client.
func faultOf(err error) *fault {
	var f *fault
	var o *frontend.OutcomeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.As(err, &o):
		return outcomeFault(o)
	case errors.Is(err, frontend.ErrInvalid):
		return invalid("%v", err)
	case errors.Is(err, rdma.ErrNoMemory):
		return refusal(http.StatusTooManyRequests, codes.ResourceExhausted, "no_memory", err.Error())
	case errors.Is(err, rdma.ErrTooLarge):
		return tooLarge("%v", err)
	case errors.Is(err, frontend.ErrClosed):
		return refusal(http.StatusServiceUnavailable, codes.Unavailable, "closed", err.Error())
	}
	return refusal(http.StatusInternalServerError, codes.Internal, "internal", err.Error())
}

func outcomeFault(o *frontend.OutcomeError) *fault {
	f := &fault{reason: o.Reason.String(), text: o.Error()}
	switch o.Reason {
	case sched.DeadlineCannotBeMet, sched.DeadlinePast:
		f.http, f.code = http.StatusGatewayTimeout, codes.DeadlineExceeded
	case sched.QueueFull:
		f.http, f.code = http.StatusTooManyRequests, codes.ResourceExhausted
	case sched.UnknownModel:
		f.http, f.code = http.StatusNotFound, codes.NotFound
	case sched.NoBackend, sched.BackendLost:
		f.http, f.code = http.StatusServiceUnavailable, codes.Unavailable
	case sched.Canceled:
		f.http, f.code = httpCanceled, codes.Canceled
		if errors.Is(o.Cause, context.DeadlineExceeded) {
			f.http, f.code = http.StatusGatewayTimeout, codes.DeadlineExceeded
		}
	default:
		f.http, f.code = http.StatusInternalServerError, codes.Internal
	}
	return f
}
