package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"downbeat.dev/core/guard"
	"downbeat.dev/frontend/gateway/clients"
	"downbeat.dev/frontend/gateway/oip"
)

// rpcCall is a gRPC call from its headers on, and the context that everything of it runs under.
type rpcCall struct {
	context.Context
	cancel     context.CancelCauseFunc
	connection *guard.Connection // nil: not of Serve
	client     *clients.Client   // nil: no clients are told apart
	began      time.Time         // its headers were read; zero for a stream of inferences
	headers    callersHeaders    // as they came; only read
	arriving   transfer          // the message that is being read
}

type callKey struct{}

// Value implements context.Context.
func (c *rpcCall) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Err implements context.Context. gRPC makes the call's status of it, and has no other way to tell a caller
// why its message was given up.
func (c *rpcCall) Err() error {
	err := c.Context.Err()
	var f *fault
	if err == nil || !errors.As(context.Cause(c.Context), &f) {
		return err
	}

	// gRPC maps this error of the context package to the fault's own status.
	if f.code == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return f
}

// callOf is the call that a handler serves; nil outside of one.
func callOf(ctx context.Context) *rpcCall {
	c, _ := ctx.Value(callKey{}).(*rpcCall)
	return c
}

// Faults of messages that are ended on their way.
var (
	errSlowMessage = refusalFault(http.StatusRequestTimeout, codes.DeadlineExceeded, "slow_body", "message: did not arrive in time")
	errMemory      = refusalFault(http.StatusTooManyRequests, codes.ResourceExhausted, "too_many_bodies", "the messages under way take all the memory that messages may take")
)

// admitCall looks at a call's headers before anything of its message is read: it demands the token, and
// room for another message. It runs in the connection's reader and must not block.
func (g *Gateway) admitCall(ctx context.Context, info *tap.Info) (context.Context, error) {
	c := &rpcCall{began: time.Now(), headers: callersHeaders(info.Header)}
	if p, ok := peer.FromContext(ctx); ok {
		c.connection = guard.ConnectionOf(p.Addr)
	}

	// The token is asked for first, so that strangers learn nothing about restrictions and memory.
	if f := g.authorizeRPC(c, info); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	if f := g.o.Restricted.checkCall(info.FullMethodName, info.Header); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	if g.memory.isFull() {
		return nil, errMemory.GRPCStatus().Err()
	}

	// A call that is ended on its way carries the fault as its cause, which Err hands to gRPC.
	c.Context, c.cancel = context.WithCancelCause(ctx)
	c.arriving.abort = func(why *fault) { c.cancel(why) }
	return c, nil
}

// asStreams is a service whose unary methods are served as streams of one message each, which are the same
// on the wire: gRPC reads a unary call's message before any code of ours runs, and a stream's when it is asked to.
func asStreams(desc grpc.ServiceDesc) grpc.ServiceDesc {
	desc.Streams = slices.Clone(desc.Streams)
	for _, method := range desc.Methods {
		// The generated handler reads its message through RecvMsg, where watchArrivals sees it.
		serve := func(srv any, stream grpc.ServerStream) error {
			reply, err := method.Handler(srv, stream.Context(), stream.RecvMsg, nil)
			if err != nil {
				return err
			}
			return stream.SendMsg(reply)
		}
		desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: method.MethodName, Handler: serve, ServerStreams: true, ClientStreams: true})
	}

	// gRPC looks among the methods first: one that stayed there would be served as unary again.
	desc.Methods = nil
	return desc
}

// watchArrivals is the interceptor that lists a call's message while it is read. A stream of inferences may
// be silent for as long as its connection lives; other calls must ask at once.
func (g *Gateway) watchArrivals(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	c := callOf(stream.Context())
	if c == nil {
		return next(srv, stream)
	}

	of := &g.arrivals
	if info.FullMethod == oip.GRPCInferenceService_ModelStreamInfer_FullMethodName {
		// The stream's headers came long before its messages, whose clocks start by themselves.
		of = &g.waiting
		c.began = time.Time{}
	}
	return next(srv, &arrivingStream{stream, c, of})
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

// hangUp closes the connection of a call whose reply nobody takes. The reply lies behind others in the
// connection's queue, so ending the call alone would not free it.
func (c *rpcCall) hangUp(*fault) {
	if c.connection != nil {
		c.connection.Close()
	}
}

// shedLongest ends the message that has been arriving longest, because memory is short. Streams of inferences come
// last: most of them wait and hold nothing.
func (g *Gateway) shedLongest() {
	now := time.Now()
	if !g.arrivals.abortOldest(now, errMemory) {
		g.waiting.abortOldest(now, errMemory)
	}
}

// sweepEvery is how often overdue messages are looked for.
const sweepEvery = time.Second

// sweepTransfers ends messages that take too long to arrive or to be taken, and counts what other frontends had, until
// closing is closed.
func (g *Gateway) sweepTransfers(every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-g.closing:
			return
		case now := <-t.C:
			g.countElsewhere(now)

			// Each list begins with its oldest: the first that is in time ends the loop.
			for g.arrivals.abortOldest(now.Add(-g.times.body), errSlowMessage) {
			}
			for g.replies.abortOldest(now.Add(-g.times.answer), errSlowMessage) {
			}
		}
	}
}
