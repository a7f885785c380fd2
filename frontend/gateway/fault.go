package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// fault is an answer other than the one asked for, as both protocols tell it.
type fault struct {
	http   int
	code   codes.Code
	reason string // how metrics label it: a model.Reason, or invalid_argument, not_found …
	text   string

	counted bool          // the requests behind it are in the metrics
	budget  time.Duration // of the request that ended so
	retry   bool          // the same call may succeed in a while, although its status does not say so
}

func (f *fault) Error() string { return f.text }

// GRPCStatus makes a fault usable where grpc expects a status.
func (f *fault) GRPCStatus() *status.Status { return status.New(f.code, f.text) }

// httpCanceled is what the log of a client that went away shows; nobody reads the answer.
const httpCanceled = 499

func refusalFault(status int, code codes.Code, reason, text string) *fault {
	return &fault{http: status, code: code, reason: reason, text: text}
}

func invalidFault(format string, args ...any) *fault {
	return refusalFault(http.StatusBadRequest, codes.InvalidArgument, "invalid_argument", fmt.Sprintf(format, args...))
}

func notFound(format string, args ...any) *fault {
	return refusalFault(http.StatusNotFound, codes.NotFound, "unknown_model", fmt.Sprintf(format, args...))
}

func tooLarge(format string, args ...any) *fault {
	return refusalFault(http.StatusRequestEntityTooLarge, codes.ResourceExhausted, "too_large", fmt.Sprintf(format, args...))
}

// faultOf tells what the end of a request means to a client.
func faultOf(err error) *fault {
	var f *fault
	var o *frontend.OutcomeError

	// What has been told as a fault stays one; the library's errors get theirs here.
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return f
	case errors.As(err, &o):
		return outcomeFault(o)
	case errors.Is(err, frontend.ErrInvalid):
		return invalidFault("%v", err)
	case errors.Is(err, rdma.ErrNoMemory):
		return refusalFault(http.StatusTooManyRequests, codes.ResourceExhausted, "no_memory", err.Error())
	case errors.Is(err, rdma.ErrTooLarge):
		return tooLarge("%v", err)
	case errors.Is(err, frontend.ErrClosed):
		return refusalFault(http.StatusServiceUnavailable, codes.Unavailable, "closed", err.Error())
	}
	return refusalFault(http.StatusInternalServerError, codes.Internal, "internal", err.Error())
}

func outcomeFault(o *frontend.OutcomeError) *fault {
	f := &fault{reason: o.Reason.String(), text: o.Error(), budget: o.Budget}

	switch o.Reason {
	case model.DeadlineCannotBeMet, model.DeadlinePast:
		f.http, f.code = http.StatusGatewayTimeout, codes.DeadlineExceeded
	case model.FloorTooHigh:
		f.http, f.code = http.StatusUnprocessableEntity, codes.FailedPrecondition
	case model.QueueFull:
		f.http, f.code = http.StatusTooManyRequests, codes.ResourceExhausted
	case model.UnknownModel:
		f.http, f.code = http.StatusNotFound, codes.NotFound
	case model.NoBackend, model.BackendLost:
		f.http, f.code = http.StatusServiceUnavailable, codes.Unavailable
	case model.Canceled:
		// A call is canceled by its caller's own deadline, too.
		f.http, f.code = httpCanceled, codes.Canceled
		if errors.Is(o.Cause, context.DeadlineExceeded) {
			f.http, f.code = http.StatusGatewayTimeout, codes.DeadlineExceeded
		}
	default:
		f.http, f.code = http.StatusInternalServerError, codes.Internal
	}

	return f
}
