//go:build linux

package downbeat

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/learn"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/observe/tracing"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway"
	"downbeat.dev/frontend/gateway/clients"
	"downbeat.dev/rdma"

	"go.opentelemetry.io/otel/trace"
)

// openScheduler starts the engine, and accepts links over TCP unless Listen is empty. With an election the scheduler
// stands by until it is elected.
func (s *System) openScheduler(context.Context) error {
	floors, err := s.config.Accuracy.ByFamily()
	if err != nil {
		return fmt.Errorf("accuracy.floors: %w", err)
	}

	e, err := engine.New(engine.Options{QueueMax: s.config.QueueMax, Prompt: s.config.Prompt, LearnShare: s.config.LearnShare, Floors: floors, Epoch: s.config.Cluster.Epoch, Logger: s.logOf("core")})
	if err != nil {
		return fmt.Errorf("start scheduler: %w", err)
	}

	s.engine = e
	s.onClose(e.Close)
	s.watchScheduler(e)
	s.addProcessors(len(e.Loops()))

	t, err := s.config.PeerTLS()
	if err != nil {
		return err
	}

	s.server = control.NewServer(e, control.ServerOptions{Token: s.token, TLS: t, Standby: s.config.Election != nil, Logger: s.logOf("core")})
	s.onClose(s.server.Close)
	s.process.Register(s.leadMetrics()...)
	if s.config.Listen == "" {
		return nil
	}

	ln, err := control.Listen(s.config.Listen)
	if err != nil {
		return err
	}

	s.config.Listen = ln.Addr().String()

	// The candidate's name contains the port, which is known only after listening.
	if s.config.Election != nil {
		s.joinElection(t)
	}

	s.log.Info("scheduler listens", "address", s.config.Listen)
	go func() {
		if err := s.server.Serve(ln); err != nil {
			s.fail(fmt.Errorf("scheduler: %w", err))
		}
	}()
	return nil
}

// addProcessors raises GOMAXPROCS by the number of a part's threads that wait in the kernel: the scheduler's loops
// wait for timers, executors for batches. Go counts such a thread's processor as busy until its monitor looks, up to
// 10 ms later; if all processors are busy in this way, no goroutine reads sockets meanwhile. At most the original
// number of threads still runs at a time. Go does not follow later changes of a container's processor limit
// (docs/decisions/0027).
func (s *System) addProcessors(threads int) {
	if threads <= 0 {
		return
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + threads)
	s.onClose(func() error {
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)-threads))
		return nil
	})
}

// dataPlane returns the data plane configuration of a client or a backend.
func (s *System) dataPlane() (rdma.Config, error) {
	t, err := s.config.PeerTLS()
	c := rdma.Config{Listen: s.config.Data, Token: s.token, TLS: t, Logger: s.logOf("rdma")}

	// Without a list the data plane takes the best provider of this host.
	if s.config.Provider != "auto" {
		c.Providers = []string{s.config.Provider}
	}

	return c, err
}

// patience is how long a patient part waits for its scheduler before Start continues without it.
const patience = time.Second

// dialPatiently returns the options with which a part dials its scheduler.
func (s *System) dialPatiently(t *tls.Config) control.DialOptions {
	return control.DialOptions{Addr: s.config.Scheduler, Token: s.token, TLS: t, Patient: true, Logger: s.log}
}

// openBackend starts a backend, connected to this process's scheduler if there is one.
func (s *System) openBackend(ctx context.Context) error {
	data, err := s.dataPlane()
	if err != nil {
		return err
	}

	o := backend.Options{Scheduler: s.config.Scheduler, Patient: s.config.Patient, Token: s.token, TLS: data.TLS, Models: s.config.Models, Strict: s.config.Protocol.StrictModels,
		Control: s.config.Repository.ModelControl, Load: s.config.Repository.Models(), PollEvery: s.config.Repository.PollEvery, State: s.config.Repository.StateDir,
		Executors: s.config.Executors, Emulate: s.config.Emulate, GPUs: s.config.GPU, Data: data, Logger: s.logOf("backend")}

	// Within one process the backend calls the scheduler directly.
	if s.server != nil {
		addr, forget := control.ListenInProcess(s.server.Frontend, s.server.Backend)
		s.onClose(forget)
		o.Scheduler = addr
	}

	// TuneBackend comes last, so it can change what the knobs have set.
	if s.config.TuneBackend != nil {
		s.config.TuneBackend(&o)
	}

	b, err := backend.Start(ctx, o)
	if err != nil {
		return fmt.Errorf("start backend: %w", err)
	}

	s.backend = b
	s.process.Register(b, dataLinkMetrics{"frontend", b.DataLinks})
	if s.config.Protocol.TritonMetrics {
		s.process.Register(backend.PowerMetrics())
	}
	s.addProcessors(len(b.Stats()))
	s.closes = append(s.closes, b.Stop)
	s.startLearners(b, o.Models, o.Library)
	return nil
}

// startLearners starts a learner for each model that the repository declares trainable. A model that cannot be
// trained keeps serving unchanged.
func (s *System) startLearners(b *backend.Service, repositories, library string) {
	for dir := range strings.SplitSeq(cmp.Or(repositories, "models"), ",") {
		all, err := learn.ListTrainable(dir)
		if err != nil {
			s.log.Error("models are not trained", "err", err)
		}
		for _, name := range all {
			l, err := learn.StartLive(b.Backend, dir, name, library, s.logOf("backend"))
			switch {
			case err != nil:
				s.log.Error("model is not trained", "model", name, "err", err)
			case l != nil:
				s.learners = append(s.learners, l)
				s.process.Register(l)
				s.onClose(l.Close)
			}
		}
	}

	// The list of learners is complete and does not change any more.
	s.process.SetLearners(s.standings)
}

// clientWait is how long Start waits for the scheduler of a client that is not patient.
const clientWait = 10 * time.Second

// openClient opens a frontend, connected to this process's scheduler if there is one.
func (s *System) openClient(ctx context.Context) error {
	data, err := s.dataPlane()
	if err != nil {
		return err
	}

	host, _ := os.Hostname()
	o := frontend.Options{Name: fmt.Sprintf("%s/%d", host, os.Getpid()), Scheduler: s.config.Scheduler, Patient: s.config.Patient, Token: s.token, TLS: data.TLS,
		Data: frontend.DataPlane{Listen: data.Listen, Providers: data.Providers, TLS: data.TLS, Logger: data.Logger}, Logger: s.logOf("frontend")}

	// Within one process the client calls the scheduler directly.
	if s.server != nil {
		addr, forget := control.ListenInProcess(s.server.Frontend, nil)
		s.onClose(forget)
		o.Scheduler = addr
	}

	if s.config.TuneClient != nil {
		s.config.TuneClient(&o)
	}

	// A waiting start logs a line after a second, and fails after clientWait.
	ctx, cancel := context.WithTimeout(ctx, clientWait)
	defer cancel()
	if !s.config.Patient {
		slow := time.AfterFunc(time.Second, func() { s.log.Warn("waiting for the scheduler", "address", o.Scheduler) })
		defer slow.Stop()
	}

	if s.client, err = frontend.Dial(ctx, o); err != nil {
		return err
	}

	s.onClose(s.client.Close)
	s.process.Register(dataLinkMetrics{"backend", s.clientLinks})
	return nil
}

// openGateway serves REST and gRPC over the client.
func (s *System) openGateway(ctx context.Context) error {
	t, err := s.config.PublicTLS()
	if err != nil {
		return err
	}
	rest, rpc, err := s.gatewayListeners()
	if err != nil {
		return err
	}

	o, err := s.gatewayOptions(ctx, t)
	if err != nil {
		return errors.Join(err, rest.Close(), rpc.Close())
	}

	g := gateway.New(s.client, o)
	s.gateway = g

	// The gateway serves until Close: Start's ctx bounds only the start.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Serve(ctx, rest, rpc); err != nil && ctx.Err() == nil {
			s.fail(fmt.Errorf("gateway: %w", err))
		}
	}()

	s.onClose(func() error { cancel(); <-ended; return nil })
	s.log.Info("gateway listens", "page", s.PageURL(), "rest", s.config.HTTP, "grpc", s.config.GRPC)
	return nil
}

// gatewayOptions reads the files that the gateway's knobs name, connects to the span collector and opens the
// applications.
func (s *System) gatewayOptions(ctx context.Context, t *tls.Config) (o gateway.Options, err error) {
	p := &s.config.Protocol
	o = gateway.Options{
		Name:         p.ServerName,
		Version:      s.config.Version,
		Token:        s.token,
		TLS:          t,
		ClientMemory: p.ClientSHM,
		DeviceMemory: s.config.DeviceMemory,

		StrictReadiness: p.StrictReadiness,
		TritonMetrics:   p.TritonMetrics,
		LogLevels:       s.levels,
		Access:          s.access,
		Process:         s.process,
		Logger:          s.logOf("frontend"),
	}

	if p.ClientTokensFile != "" {
		if o.Clients, err = clients.Open(p.ClientTokensFile, s.token, s.logOf("frontend")); err != nil {
			return o, err
		}
	}
	if p.RestrictedFile != "" {
		if o.Restricted, err = gateway.OpenRestrictions(p.RestrictedFile); err != nil {
			return o, err
		}
	}

	rate := tracing.NewRate(p.TraceRate)
	if o.Tracer, err = s.openTracer(ctx, rate); err != nil {
		return o, err
	}
	if o.Tracer != nil {
		o.TraceRate = rate
	}

	if s.applications = s.openApplications(); s.applications != nil {
		o.Applications = s.applications
		s.process.Register(sessionMetrics{s.applications})
	}
	return o, nil
}

// gatewayListeners listens for REST and gRPC, and stores the actual addresses in the configuration.
func (s *System) gatewayListeners() (rest, rpc net.Listener, err error) {
	if rest, err = s.listenPublic(s.config.HTTP, Default().HTTP); err != nil {
		return nil, nil, err
	}

	if rpc, err = s.listenPublic(s.config.GRPC, Default().GRPC); err != nil {
		rest.Close()
		return nil, nil, err
	}

	s.config.HTTP, s.config.GRPC = rest.Addr().String(), rpc.Addr().String()
	return rest, rpc, nil
}

// listenPublic listens on an address of the gateway. If it is the default address, it may fall back to a free port
// (FreePorts).
func (s *System) listenPublic(addr, usual string) (net.Listener, error) {
	ln, err := control.Listen(addr)

	// An address that the user chose must not be replaced.
	if err != nil && s.config.FreePorts && addr == usual {
		ln, err = control.Listen("127.0.0.1:0")
	}

	if err != nil {
		return nil, err
	}

	return loggedListener{ln, s.log}, nil
}

// openTracer connects to the span collector; the tracer is nil if none is configured.
func (s *System) openTracer(ctx context.Context, rate *tracing.Rate) (trace.Tracer, error) {
	p := s.config.Protocol
	if p.Trace == "" {
		return nil, nil
	}
	provider, err := tracing.Open(ctx, p.Trace, rate, p.ServerName, s.config.Version)
	if err != nil {
		return nil, err
	}

	s.closes = append(s.closes, provider.Shutdown)
	return provider.Tracer("downbeat.dev/frontend/gateway"), nil
}

// PageURL returns the address of the gateway's page; empty if no gateway runs here.
func (s *System) PageURL() string {
	if s.gateway == nil {
		return ""
	}
	scheme := "http"
	if s.config.TLS != "" {
		scheme = "https"
	}

	host, port, _ := net.SplitHostPort(s.config.HTTP)

	// A browser cannot open the unspecified address.
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}

	return scheme + "://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + "/"
}
