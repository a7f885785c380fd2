//go:build linux

package downbeat

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/backend/learn"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/frontend"
	"downbeat.dev/rdma"
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
		Executors: s.config.Executors, Threads: s.config.Threads, Lanes: s.config.Lanes, Emulate: s.config.Emulate, GPUs: s.config.GPU, Data: data, Logger: s.logOf("backend")}

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
