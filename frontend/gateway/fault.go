package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"downbeat.dev/core/model"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
)

// fault is an error answer, in the form of both protocols.
type fault struct {
	http   int
	code   codes.Code
	reason string // its label in metrics: a model.Reason, or invalid_argument, not_found …
	text   string

	counted bool          // the metrics already count its requests
	budget  time.Duration // the budget of the request that failed
	retry   bool          // the same call may succeed later, although its status does not say so
}

func (f *fault) Error() string { return f.text }

// GRPCStatus makes a fault usable where grpc expects a status.
func (f *fault) GRPCStatus() *status.Status { return status.New(f.code, f.text) }

// httpCanceled is the status in the log for a client that disconnected; no one reads the answer.
const httpCanceled = 499

func refusalFault(status int, code codes.Code, reason, text string) *fault {
	return &fault{http: status, code: code, reason: reason, text: cutText(text)}
}

// textMax bounds an error's text, which may repeat what the client sent. gRPC sends it in a header, and clients take
// headers of some KiB.
const textMax = 4 << 10

func cutText(text string) string {
	if len(text) <= textMax {
		return text
	}
	return strings.ToValidUTF8(text[:textMax], "") + "…" // the cut may be within a character
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

// faultOf returns the fault for a request's error.
func faultOf(err error) *fault {
	var f *fault
	var o *frontend.OutcomeError

	// An error that already is a fault stays as it is; the library's errors are mapped here.
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
		// A caller's own deadline also cancels a call.
		f.http, f.code = httpCanceled, codes.Canceled
		if errors.Is(o.Cause, context.DeadlineExceeded) {
			f.http, f.code = http.StatusGatewayTimeout, codes.DeadlineExceeded
		}
	default:
		f.http, f.code = http.StatusInternalServerError, codes.Internal
	}

	return f
}
