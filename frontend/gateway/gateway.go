package gateway

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/page"
)

// Options say how a gateway serves.
type Options struct {
	Version string      // of the server, as metadata reports it
	Token   string      // callers must send it as "Authorization: Bearer TOKEN"; empty: anyone may call
	TLS     *tls.Config // of both listeners; nil: plain
	BodyMax int64       // bytes of a request or a response; 64 MiB when 0
	// Scheduler, where it runs in this process, lets metrics and page show batches and GPUs; else nil.
	Scheduler Scheduler
	// Metrics of other parts of this process, shown beside the gateway's own.
	Metrics []prometheus.Collector
	Logger  *slog.Logger
}

// Gateway serves a Client's models over REST and gRPC.
type Gateway struct {
	o       Options
	client  *frontend.Client
	log     *slog.Logger
	metrics *metrics
	watch   *watch // nil: the scheduler is elsewhere
	rest    *http.Server
	grpc    *grpc.Server
	closing chan struct{}
	bodies  atomic.Int64 // bytes of the REST bodies under way
	leaving atomic.Bool  // not ready any more, still serving
	late    atomic.Int64 // REST calls since leaving
}

// Timeouts of REST connections. A request's own deadline is its business, not these.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 60 * time.Second
	idleTimeout   = 2 * time.Minute
)

// New returns a gateway over a client, which stays the caller's to close, after the gateway.
func New(client *frontend.Client, o Options) *Gateway {
	if o.BodyMax <= 0 {
		o.BodyMax = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = "devel"
	}
	g := &Gateway{o: o, client: client, log: o.Logger, metrics: newMetrics(client), closing: make(chan struct{})}
	mux := http.NewServeMux()
	g.routes(mux)
	g.metrics.registry.MustRegister(o.Metrics...)
	mux.Handle("GET /metrics", promhttp.HandlerFor(g.metrics.registry, promhttp.HandlerOpts{}))
	page.Routes(mux, g.pageData)
	if o.Scheduler != nil {
		g.watch = newWatch(o.Scheduler, g.metrics.registry)
	}
	g.rest = &http.Server{Handler: g.parting(authorized(o.Token, mux)), ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug)}
	options := []grpc.ServerOption{}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	if o.Token != "" {
		options = append(options, grpc.ChainUnaryInterceptor(g.unaryAuth), grpc.ChainStreamInterceptor(g.streamAuth))
	}
	g.grpc = g.newGRPC(options...)
	return g
}

// Serve serves REST and gRPC on the listeners, either of which may be nil, until ctx ends or one of
// them fails. It closes both.
func (g *Gateway) Serve(ctx context.Context, rest, rpc net.Listener) error {
	ended := make(chan error, 2)
	running := 0
	if g.watch != nil {
		watched := make(chan struct{})
		go func() { g.watch.run(g.closing); close(watched) }()
		defer func() { <-watched }()
	}
	if rest != nil {
		if g.o.TLS != nil {
			rest = tls.NewListener(rest, g.o.TLS)
		}
		running++
		go func() { ended <- g.rest.Serve(rest) }()
	}
	if rpc != nil {
		running++
		go func() { ended <- g.grpc.Serve(rpc) }()
	}
	var err error
	if running > 0 {
		select {
		case <-ctx.Done():
			g.leave()
		case err = <-ended:
			running--
		}
	}
	g.stop()
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

// How long a gateway that closes lets what is under way end; and how long it waits before, ready no
// more but serving, until no call has come for a while.
const (
	drain      = 2 * time.Second
	leaveMax   = time.Second
	leaveQuiet = 100 * time.Millisecond
)

// leave waits until callers have taken notice: balancers see that the gateway is not ready, and a
// connection ends with its next answer, where closing it would race with the next call.
func (g *Gateway) leave() {
	g.leaving.Store(true)
	for end, before := time.Now().Add(leaveMax), int64(-1); time.Now().Before(end); {
		now := g.late.Load()
		if now == before {
			return
		}
		before = now
		time.Sleep(leaveQuiet)
	}
}

// parting tells the callers of a gateway that leaves to connect elsewhere.
func (g *Gateway) parting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.leaving.Load() {
			g.late.Add(1)
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// stop refuses new calls and lets those under way end.
func (g *Gateway) stop() {
	close(g.closing)
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		g.grpc.GracefulStop()
		close(stopped)
	}()
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

// authorized lets a request through that carries the token. Liveness is no secret.
func authorized(token string, next http.Handler) http.Handler {
	if token == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/health/live" && r.URL.Path != "/v2/health/ready" && !bears(r.Header.Get("Authorization"), token) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeFault(w, refusal(http.StatusUnauthorized, codes.Unauthenticated, "unauthenticated", errToken))
			return
		}
		next.ServeHTTP(w, r)
	})
}

const errToken = `header authorization: must be "Bearer" and the token that the gateway was given`

func bears(header, token string) bool {
	sent, ok := strings.CutPrefix(header, "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(sent), []byte(token)) == 1
}

func (g *Gateway) authContext(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, h := range md.Get("authorization") {
		if bears(h, g.o.Token) {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, errToken)
}

func (g *Gateway) unaryAuth(ctx context.Context, r any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if !strings.HasPrefix(info.FullMethod, "/grpc.health.v1.") {
		if err := g.authContext(ctx); err != nil {
			return nil, err
		}
	}
	return next(ctx, r)
}

func (g *Gateway) streamAuth(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !strings.HasPrefix(info.FullMethod, "/grpc.health.v1.") {
		if err := g.authContext(stream.Context()); err != nil {
			return err
		}
	}
	return next(srv, stream)
}
