package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"downbeat.dev/core/guard"
	"downbeat.dev/core/observe"
	"downbeat.dev/core/observe/levels"
	"downbeat.dev/core/observe/spans"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/clients"
	"downbeat.dev/frontend/gateway/page"
)

// Options configure a gateway.
type Options struct {
	Name    string // the server's name in metadata; "downbeat" when empty
	Version string // the server's version in metadata
	Token   string // callers must send it as "Authorization: Bearer TOKEN"; empty: anyone may call
	// Clients, if set, are the clients that may call the API, each with its own token; Token then opens only the
	// operators' paths: metrics, the page and the log's settings.
	Clients *clients.Set
	// Restricted, if set, requires a header for some classes of endpoints.
	Restricted *Restrictions
	TLS        *tls.Config // of both listeners; nil: plain
	// Access receives a line for every inference call: model, request id, trace, rows, time and outcome. Nil: no
	// access log.
	Access *slog.Logger
	// Tracer receives a span for every inference call, and one for each stage of it. Nil: no spans.
	Tracer trace.Tracer
	// TraceRate, if set, is the rate that the trace settings extension changes; nil refuses changes.
	TraceRate spans.Rate
	// LogLevels, if set, are the levels that the log settings extension changes; nil refuses changes.
	LogLevels *levels.Levels
	// StrictReadiness makes the gateway unready while some backend cannot serve one of its models.
	StrictReadiness bool
	// ClientMemory lets clients of this host register shared memory objects of the gateway's user and keep tensors in
	// them.
	ClientMemory bool
	// DeviceMemory, if set, opens device memory that clients of this host register under ClientMemory. The caller
	// closes it after the gateway.
	DeviceMemory DeviceMemory
	BodyMax      int64 // largest request or response in bytes; 0: 64 MiB or half of MemoryMax, whichever is less
	// MemoryMax bounds the bytes of all requests and responses under way. 0: a quarter of the memory that GOMEMLIMIT,
	// the cgroup or the host allows the process.
	MemoryMax int64
	// Process, if set, is the process's own status: the gateway adds its part and serves it with its own routes. If
	// it has a scheduler, statistics and page show batches and GPUs. Nil: the gateway creates one.
	Process *observe.Process
	// Applications, if set, are served beside the client's models.
	Applications Applications
	// TritonMetrics also exports metrics under Triton's names.
	TritonMetrics bool
	Logger        *slog.Logger
}

// Gateway serves a Client's models over REST and gRPC.
type Gateway struct {
	o       Options
	client  *frontend.Client
	log     *slog.Logger
	metrics *metrics
	process *observe.Process
	rest    *http.Server
	grpc    *grpc.Server
	closing chan struct{}
	memory  memory       // of all messages under way
	regions regions      // of clients' shared memory
	looking sync.Mutex   // held while countElsewhere runs; guards looked and the models' elsewhere
	looked  time.Time    // when countElsewhere last counted
	leaving atomic.Bool  // no longer ready, still serving
	late    atomic.Int64 // REST calls since leaving

	canaries       canaries
	copies         chan struct{}   // has a slot for each call whose copies are under way
	closingContext context.Context // ends when closing is closed
	endContext     context.CancelFunc

	health      healthState
	traces      *spans.Settings
	connections *guard.Connections
	arrivals    transfers // gRPC messages being read
	waiting     transfers // streams of inferences that wait for their next message
	replies     transfers // gRPC replies that the client has not read yet
	times       times
}

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

// New returns a gateway over a client. The caller closes the client, after the gateway.
func New(client *frontend.Client, o Options) *Gateway {
	if o.MemoryMax <= 0 {
		o.MemoryMax = processMemory() / memoryShare
	}
	if o.BodyMax <= 0 {
		o.BodyMax = min(64<<20, o.MemoryMax/2) // a gRPC message in pieces is copied once
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Name == "" {
		o.Name = "downbeat"
	}
	if o.Version == "" {
		o.Version = "devel"
	}

	g := &Gateway{o: o, client: client, log: o.Logger, metrics: newMetrics(client, o.Applications), process: cmp.Or(o.Process, observe.NewProcess()), closing: make(chan struct{}),
		connections: guard.NewConnections(connectionLimits, o.Token == "" && o.Clients == nil), times: times{body: bodyTimeout, answer: answerTimeout}}

	g.copies = make(chan struct{}, copiesMax)
	g.closingContext, g.endContext = context.WithCancel(context.Background())

	// gRPC's buffers cannot be refused: above the bound, the oldest arriving message is aborted instead.
	g.memory.max, g.memory.over = o.MemoryMax, g.shedLongest
	g.regions.off, g.regions.devices = !o.ClientMemory, o.DeviceMemory
	g.health.strict = o.StrictReadiness
	g.traces = spans.NewSettings(o.TraceRate)

	mux := http.NewServeMux()
	g.registerRoutes(mux)
	g.describeProcess()
	page.Routes(mux, g.pageData)

	// Tokens are checked before restrictions. A refused caller still learns that the gateway is leaving.
	g.rest = &http.Server{Handler: g.tellParting(g.authorizeCaller(o.Restricted.restrictRoutes(mux, g.routeCalls(mux)))), ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: 64 << 10, ConnContext: guard.WithConnection, ConnState: awaitNextCall, WriteTimeout: writeTimeout, ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug)}

	// gRPC's TLS belongs to its server; Serve wraps REST's listener in TLS.
	options := []grpc.ServerOption{}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	g.grpc = g.newGRPC(options...)
	return g
}

// connectionLimits bound a gateway's connections, REST and gRPC together.
var connectionLimits = guard.Limits{All: 16_384, PerAddress: 8_192, Strangers: 2_048, StrangersPerAddress: 512,
	StrangerBytes: 64 << 10, StrangerBytesPerMS: 1}

// describeProcess adds the gateway's part to the process's status.
func (g *Gateway) describeProcess() {
	g.process.Register(g.metrics.collectors()...)
	g.process.Register(&g.canaries)
	g.process.SetHealth(observe.Health{Ready: g.isReady, Serving: g.isServing})
	if g.o.Clients != nil {
		g.process.Register(g.o.Clients)
	}
	if g.o.TritonMetrics {
		g.process.Register(aliases{g})
	}
	if sessions, ok := g.o.Applications.(observe.Sessions); ok {
		g.process.SetSessions(sessions)
	}
}

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

	if rpc != nil {
		running++
		rpc = g.connections.Bound(rpc)
		go func() { ended <- g.grpc.Serve(rpc) }()
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
