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

// openScheduler starts the engine, and accepts links over TCP unless Listen is empty. With an election it stands by until
// it is elected.
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

	// Only now: the name that it stands under has the port that was given.
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

// addProcessors gives Go as many processors more as threads of a part wait in the kernel: the scheduler's loops
// for their next wake-up, executors for their batches. Go counts such a thread's processor as busy until its
// monitor looks, up to 10 ms later; where all are, nobody reads a socket meanwhile. What GOMAXPROCS was set to
// stays the number that run at a time. Go does not follow changes of a container's processor limit afterwards
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

// dataPlane is the configuration of a client's or a backend's data plane.
func (s *System) dataPlane() (rdma.Config, error) {
	t, err := s.config.PeerTLS()
	c := rdma.Config{Listen: s.config.Data, Token: s.token, TLS: t, Logger: s.logOf("rdma")}

	// Without a list the data plane takes the best provider that this host has.
	if s.config.Provider != "auto" {
		c.Providers = []string{s.config.Provider}
	}

	return c, err
}

// patience is how long a patient part looks for its scheduler before Start goes on without.
const patience = time.Second

// dialPatiently says where a patient part's scheduler is.
func (s *System) dialPatiently(t *tls.Config) control.DialOptions {
	return control.DialOptions{Addr: s.config.Scheduler, Token: s.token, TLS: t, Patient: true, Logger: s.log}
}

// openBackend starts a backend, on the scheduler of this process if there is one.
func (s *System) openBackend(ctx context.Context) error {
	data, err := s.dataPlane()
	if err != nil {
		return err
	}

	o := backend.Options{Scheduler: s.config.Scheduler, Patient: s.config.Patient, Token: s.token, TLS: data.TLS, Models: s.config.Models, Strict: s.config.Protocol.StrictModels,
		Control: s.config.Repository.ModelControl, Load: s.config.Repository.Models(), PollEvery: s.config.Repository.PollEvery, State: s.config.Repository.StateDir,
		Executors: s.config.Executors, Emulate: s.config.Emulate, GPUs: s.config.GPU, Data: data, Logger: s.logOf("backend")}

	// In one process the backend's session is a call.
	if s.server != nil {
		addr, forget := control.ListenInProcess(s.server.Frontend, s.server.Backend)
		s.onClose(forget)
		o.Scheduler = addr
	}

	// Last, so that it may change whatever the knobs have set.
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

// startLearners trains the models that the repository declares trainable. One that cannot be trained serves on as it is.
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

	// From here on nobody changes the list.
	s.process.SetLearners(s.standings)
}

// clientWait is how long Start waits for the scheduler of a client that is not patient.
const clientWait = 10 * time.Second

// openClient dials a frontend, within this process if the scheduler runs here.
func (s *System) openClient(ctx context.Context) error {
	data, err := s.dataPlane()
	if err != nil {
		return err
	}

	host, _ := os.Hostname()
	o := frontend.Options{Name: fmt.Sprintf("%s/%d", host, os.Getpid()), Scheduler: s.config.Scheduler, Patient: s.config.Patient, Token: s.token, TLS: data.TLS,
		Data: frontend.DataPlane{Listen: data.Listen, Providers: data.Providers, TLS: data.TLS, Logger: data.Logger}, Logger: s.logOf("frontend")}

	// In one process the client's link is a call.
	if s.server != nil {
		addr, forget := control.ListenInProcess(s.server.Frontend, nil)
		s.onClose(forget)
		o.Scheduler = addr
	}

	if s.config.TuneClient != nil {
		s.config.TuneClient(&o)
	}

	// A start that waits says so after a second, and gives up in the end.
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

	// Both ports are open before anything else may fail: each error from here closes them.
	p := &s.config.Protocol
	o := gateway.Options{Name: p.ServerName, ClientMemory: p.ClientSHM, DeviceMemory: s.config.DeviceMemory, LogLevels: s.levels, Access: s.access,
		StrictReadiness: p.StrictReadiness, TritonMetrics: p.TritonMetrics, Version: s.config.Version, Token: s.token, TLS: t, Process: s.process, Logger: s.logOf("frontend")}
	if p.ClientTokensFile != "" {
		if o.Clients, err = clients.Open(p.ClientTokensFile, s.token, s.logOf("frontend")); err != nil {
			return errors.Join(err, rest.Close(), rpc.Close())
		}
	}

	if p.RestrictedFile != "" {
		if o.Restricted, err = gateway.OpenRestrictions(p.RestrictedFile); err != nil {
			return errors.Join(err, rest.Close(), rpc.Close())
		}
	}

	rate := tracing.NewRate(s.config.Protocol.TraceRate)
	if o.Tracer, err = s.openTracer(ctx, rate); err != nil {
		return errors.Join(err, rest.Close(), rpc.Close())
	}

	if o.Tracer != nil {
		o.TraceRate = rate
	}

	if s.applications = s.openApplications(); s.applications != nil {
		o.Applications = s.applications
		s.process.Register(sessionMetrics{s.applications})
	}

	g := gateway.New(s.client, o)
	s.gateway = g

	// The gateway serves until Close, not until the end of what Start waits for.
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

// gatewayListeners listens for REST and gRPC, and notes where.
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

// listenPublic listens on an address of the gateway's, or on a free port where that may take its place.
func (s *System) listenPublic(addr, usual string) (net.Listener, error) {
	ln, err := control.Listen(addr)

	// Only where nobody chose the port: an address that was asked for is an error if it is taken.
	if err != nil && s.config.FreePorts && addr == usual {
		ln, err = control.Listen("127.0.0.1:0")
	}

	if err != nil {
		return nil, err
	}

	return loggedListener{ln, s.log}, nil
}

// openTracer connects to the collector of spans, if there is one.
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

// PageURL is where a person looks at the gateway's page; empty: no gateway runs here.
func (s *System) PageURL() string {
	if s.gateway == nil {
		return ""
	}
	scheme := "http"
	if s.config.TLS != "" {
		scheme = "https"
	}

	host, port, _ := net.SplitHostPort(s.config.HTTP)

	// An address that means all of this host's is no place to go to.
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}

	return scheme + "://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + "/"
}
