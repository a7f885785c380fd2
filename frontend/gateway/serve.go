package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"downbeat.dev/core/guard"
	"downbeat.dev/frontend/gateway/clients"
)

// times bounds the transfer of a message and of its answer.
type times struct{ body, answer time.Duration }

// Timeouts of REST connections. They are independent of a request's own deadline.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 60 * time.Second
	answerTimeout = 60 * time.Second
	writeTimeout  = bodyTimeout + answerTimeout // from a request's header on; an inference's starts with its answer
	idleTimeout   = 2 * time.Minute
)

// connectionLimits bound a gateway's connections, REST and gRPC together.
var connectionLimits = guard.Limits{All: 16_384, PerAddress: 8_192, Strangers: 2_048, StrangersPerAddress: 512,
	StrangerBytes: 64 << 10, StrangerBytesPerMS: 1}

// Serve serves REST and gRPC on the listeners, either of which may be nil, until ctx ends or one of them fails. It
// closes both.
func (g *Gateway) Serve(ctx context.Context, rest, rpc net.Listener) error {
	// One slot for each server, so that neither blocks when it reports its end.
	ended := make(chan error, 2)
	running := 0

	// Every goroutine started here has ended when Serve returns.
	swept := make(chan struct{})
	go func() { g.sweepTransfers(sweepEvery); close(swept) }()
	defer func() { <-swept }()

	if g.o.Clients != nil {
		// Tokens stay current while calls drain, which happens after ctx ends.
		watching, stop := context.WithCancel(context.WithoutCancel(ctx))
		watched := make(chan struct{})
		go func() { g.o.Clients.Watch(watching, clients.WatchEvery); close(watched) }()
		defer func() { stop(); <-watched }()
	}

	if rest != nil {
		// The bound lies below TLS, so a connection counts before its handshake.
		rest = g.connections.Bound(rest)
		if g.o.TLS != nil {
			rest = tls.NewListener(rest, g.o.TLS)
		}
		running++
		go func() { ended <- g.rest.Serve(rest) }()
	}

	var greeting *handshakes
	if rpc != nil {
		running++
		greeting = newHandshakes(g.connections.Bound(rpc))
		go func() { ended <- g.grpc.Serve(greeting) }()
	}

	// If either server fails, both end.
	var err error
	if running > 0 {
		select {
		case <-ctx.Done():
			g.leaveSlowly()
		case err = <-ended:
			running--
		}
	}

	if greeting != nil {
		greeting.endSoon()
	}
	g.stopServing()

	for ; running > 0; running-- {
		err = errors.Join(err, ignoreClosed(<-ended))
	}
	return ignoreClosed(err)
}

func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// The time that a closing gateway gives calls under way to end, and the bounds of the wait before it, in which the
// gateway is unready but serves until no call has arrived for a while.
const (
	drain      = 2 * time.Second
	leaveMax   = time.Second
	leaveQuiet = 100 * time.Millisecond
)

// leaveSlowly waits until callers have noticed: balancers see that the gateway is not ready, and each connection
// closes with its next answer, because an earlier close would race with the next call.
func (g *Gateway) leaveSlowly() {
	g.leaving.Store(true)
	for end, before := time.Now().Add(leaveMax), int64(-1); time.Now().Before(end); {
		// An interval without a call shows that balancers have noticed.
		now := g.late.Load()
		if now == before {
			return
		}
		before = now
		time.Sleep(leaveQuiet)
	}
}

// tellParting tells the callers of a leaving gateway to connect elsewhere.
func (g *Gateway) tellParting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.leaving.Load() {
			// HTTP's Connection: close makes a client open its next connection elsewhere.
			g.late.Add(1)
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// stopServing refuses new calls and lets those under way end.
func (g *Gateway) stopServing() {
	// Calls under way still use their regions, so close the regions last.
	defer g.regions.unregisterRegion(formCUDA, "")
	defer g.regions.unregisterRegion(formSystem, "")

	// Health watches last as long as their clients want: this ends them.
	close(g.closing)
	defer g.awaitCopies()
	g.endContext()

	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()

	// gRPC's graceful stop has no time limit; drain bounds it below.
	stopped := make(chan struct{})
	go func() {
		g.grpc.GracefulStop()
		close(stopped)
	}()

	// Calls that outlast the drain lose their connections.
	if g.rest.Shutdown(ctx) != nil {
		g.rest.Close()
	}

	select {
	case <-stopped:
	case <-ctx.Done():
		g.grpc.Stop()
		<-stopped
	}
}
