package gateway

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"downbeat.dev/core/guard"
	"downbeat.dev/frontend/gateway/clients"
	"downbeat.dev/frontend/gateway/oip"
)

// rpcCall is a gRPC call, from its headers on. It is the context of everything that runs for the call.
type rpcCall struct {
	context.Context
	cancel     context.CancelCauseFunc
	connection *guard.Connection // nil: the connection was not accepted by Serve
	client     *clients.Client   // nil: the gateway has no list of clients
	began      time.Time         // when its headers were read; zero for a stream of inferences
	headers    callersHeaders    // as received; read-only
	arriving   transfer          // the message being read
}

type callKey struct{}

// Value implements context.Context.
func (c *rpcCall) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Err implements context.Context. gRPC derives the call's status from it; there is no other way to tell a caller why
// its message was aborted.
func (c *rpcCall) Err() error {
	err := c.Context.Err()
	var f *fault
	if err == nil || !errors.As(context.Cause(c.Context), &f) {
		return err
	}

	// gRPC maps this error of package context to the fault's own status.
	if f.code == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return f
}

// callOf returns the call that a handler serves; nil outside of one.
func callOf(ctx context.Context) *rpcCall {
	c, _ := ctx.Value(callKey{}).(*rpcCall)
	return c
}

// Faults of messages that are aborted during transfer.
var (
	errSlowMessage = refusalFault(http.StatusRequestTimeout, codes.DeadlineExceeded, "slow_body", "message: did not arrive in time")
	errMemory      = refusalFault(http.StatusTooManyRequests, codes.ResourceExhausted, "too_many_bodies", "the messages under way take all the memory that messages may take")
)

// admitCall checks a call's headers before any of its message is read: it requires the token, and memory for another
// message. It runs in the connection's reader and must not block.
func (g *Gateway) admitCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	c := &rpcCall{began: time.Now(), headers: callersHeaders(info.Header)}
	if p, ok := peer.FromContext(ctx); ok {
		c.connection = guard.ConnectionOf(p.Addr)
	}

	// Check the token first, so that strangers learn nothing about restrictions and memory.
	if f := g.authorizeRPC(c, info); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	if f := g.o.Restricted.checkCall(info.FullMethodName, info.Header); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	if g.memory.isFull() {
		return nil, errMemory.GRPCStatus().Err()
	}

	// A call that is aborted carries the fault as its cause, which Err returns to gRPC.
	c.Context, c.cancel = context.WithCancelCause(ctx)
	c.arriving.abort = func(why *fault) { c.cancel(why) }
	return c, nil
}

// asStreams returns a service whose unary methods are served as streams of one message each, which look the same on
// the wire. gRPC reads a unary call's message before it calls any handler or interceptor, but a stream's message only
// on request.
func asStreams(desc grpc.ServiceDesc) grpc.ServiceDesc {
	desc.Streams = slices.Clone(desc.Streams)
	for _, method := range desc.Methods {
		// The generated handler reads its message through RecvMsg, where watchArrivals tracks it.
		serve := func(srv any, stream grpc.ServerStream) error {
			reply, err := method.Handler(srv, stream.Context(), stream.RecvMsg, nil)
			if err != nil {
				return err
			}
			return stream.SendMsg(reply)
		}
		desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: method.MethodName, Handler: serve, ServerStreams: true, ClientStreams: true})
	}

	// gRPC searches the methods first: a method that stayed there would still be served as unary.
	desc.Methods = nil
	return desc
}

// watchArrivals is the interceptor that lists a call's message while it is read. A stream of inferences may be idle
// for as long as its connection lives; other calls must send their message at once.
func (g *Gateway) watchArrivals(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer g.containPanic(info.FullMethod, &err)
	c := callOf(stream.Context())
	if c == nil {
		return next(srv, stream)
	}

	of := &g.arrivals
	if info.FullMethod == oip.GRPCInferenceService_ModelStreamInfer_FullMethodName {
		// A stream's headers come long before its messages, so each message has its own start time.
		of = &g.waiting
		c.began = time.Time{}
	}
	return next(srv, &arrivingStream{stream, c, of})
}

// containPanic, when deferred, ends the one call that panicked, as net/http does for REST. Without it gRPC's server would end
// the process, and with it everybody's calls.
func (g *Gateway) containPanic(method string, err *error) {
	if why := recover(); why != nil {
		g.log.Error("a gRPC call panicked", "method", method, "panic", why, "stack", string(debug.Stack()))
		*err = status.Error(codes.Internal, "the gateway failed at this call; its log says where")
	}
}

type arrivingStream struct {
	grpc.ServerStream
	call *rpcCall
	of   *transfers
}

// RecvMsg implements grpc.ServerStream.
func (s *arrivingStream) RecvMsg(m any) error {
	s.of.addTransfer(&s.call.arriving)
	err := s.ServerStream.RecvMsg(m)
	s.of.removeTransfer(&s.call.arriving)
	return err
}

// hangUp closes the connection of a call whose client does not read the reply. The reply is queued behind others on
// the connection, so ending only the call would not free it.
func (c *rpcCall) hangUp(*fault) {
	if c.connection != nil {
		c.connection.Close()
	}
}

// shedLongest aborts the message that has been arriving longest, because memory is short. Streams of inferences come
// last: most of them are idle and hold no memory.
func (g *Gateway) shedLongest() {
	now := time.Now()
	if !g.arrivals.abortOldest(now, errMemory) {
		g.waiting.abortOldest(now, errMemory)
	}
}

// sweepEvery is the interval of the search for overdue messages.
const sweepEvery = time.Second

// sweepTransfers aborts messages and replies whose transfer takes too long, and counts other frontends' requests,
// until closing is closed.
func (g *Gateway) sweepTransfers(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-g.closing:
			return
		case now := <-t.C:
			g.countElsewhere(now)

			// Each list starts with its oldest entry: the first one in time ends the loop.
			for g.arrivals.abortOldest(now.Add(-g.times.body), errSlowMessage) {
			}
			for g.replies.abortOldest(now.Add(-g.times.answer), errSlowMessage) {
			}
		}
	}
}
