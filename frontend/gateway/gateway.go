package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
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
	decoders       chan struct{}   // has a slot for each picture that is being decoded
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

	g.copies, g.decoders = make(chan struct{}, copiesMax), newDecoders()
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
