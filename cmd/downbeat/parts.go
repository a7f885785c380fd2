//go:build linux

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"downbeat.dev/backend"
	"downbeat.dev/core/control"
	"downbeat.dev/core/engine"
	"downbeat.dev/core/wire"
	"downbeat.dev/deploy"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway"
	"downbeat.dev/rdma"

	"golang.org/x/term"
)

// parts holds what this process runs of a deployment, and closes it in reverse order.
type parts struct {
	config deploy.Config
	token  string
	log    *slog.Logger
	failed chan error // the first part that ends by itself
	closes []func(context.Context) error
	// patient parts wait for their scheduler as long as it takes.
	patient bool

	engine  *engine.Engine  // nil: the scheduler is elsewhere
	server  *control.Server // with engine
	backend *backend.Service
	client  *frontend.Client
	gateway *gateway.Gateway
	tells   atomic.Pointer[http.Handler] // of the aside; nil: there is none
}

// newParts reads what every part needs: the secret, and where the log goes.
func newParts(c deploy.Config, log io.Writer) (*parts, error) {
	token, err := c.Token()
	if err != nil {
		return nil, err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return nil, fmt.Errorf("log_level: %w", err)
	}
	p := &parts{config: c, token: token, failed: make(chan error, 1),
		log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level}))}
	return p, nil
}

// warnExposed says which listeners of a command other hosts can reach, where nothing is encrypted.
func (p *parts) warnExposed(command, metrics string) {
	if open := p.config.Exposed(command, metrics); len(open) > 0 && p.config.TLS == "" {
		p.log.Warn("reachable from other hosts without tls: secret and tensors can be read on the way", "listeners", strings.Join(open, " "))
	}
}

// drainMax is how long a stopping process lets accepted requests finish.
const drainMax = 5 * time.Second

// close ends the parts, the last first.
func (p *parts) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainMax)
	defer cancel()
	var err error
	for i := len(p.closes) - 1; i >= 0; i-- {
		err = errors.Join(err, p.closes[i](ctx))
	}
	p.closes = nil
	return err
}

func (p *parts) onClose(f func() error) {
	p.closes = append(p.closes, func(context.Context) error { return f() })
}

// fail notes that a part ended by itself; wait returns it.
func (p *parts) fail(err error) {
	select {
	case p.failed <- err:
	default:
	}
}

// wait returns when ctx ends, or with the error of a part that ended by itself.
func (p *parts) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-p.failed:
		return err
	}
}

// openScheduler starts the engine, and accepts sessions over TCP on listen unless it is empty.
func (p *parts) openScheduler(listen string) error {
	e, err := engine.New(engine.Options{QueueMax: p.config.QueueMax, Prompt: p.config.Prompt, Logger: p.log})
	if err != nil {
		return fmt.Errorf("start scheduler: %w", err)
	}
	p.engine = e
	p.onClose(e.Close)
	t, err := p.config.PeerTLS()
	if err != nil {
		return err
	}
	p.server = control.NewServer(e, control.ServerOptions{Token: p.token, TLS: t, Logger: p.log})
	p.onClose(p.server.Close)
	if listen == "" {
		return nil
	}
	ln, err := control.Listen(listen)
	if err != nil {
		return err
	}
	p.log.Info("scheduler listens", "address", ln.Addr().String())
	go func() {
		if err := p.server.Serve(ln); err != nil {
			p.fail(fmt.Errorf("scheduler: %w", err))
		}
	}()
	return nil
}

// openAside serves metrics, health and profiles of what runs here on an address of their own; empty:
// nowhere. It comes before the parts, so that whoever asks can tell slow starts and ends from death;
// settle tells it that they are open.
func (p *parts) openAside(addr string) error {
	if addr == "" {
		return nil
	}
	starting := gateway.Aside(p.token, func() bool { return false })
	p.tells.Store(&starting)
	if err := p.config.CheckListener("metrics", addr); err != nil {
		return err
	}
	t, err := p.config.PublicTLS()
	if err != nil {
		return err
	}
	ln, err := control.Listen(addr)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	p.log.Info("metrics, health and profiles", "address", ln.Addr().String())
	if t != nil {
		ln = tls.NewListener(ln, t)
	}
	tell := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*p.tells.Load()).ServeHTTP(w, r) })
	s := &http.Server{Handler: tell, ReadHeaderTimeout: time.Second}
	go func() {
		if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			p.fail(fmt.Errorf("metrics: %w", err))
		}
	}()
	p.onClose(s.Close)
	return nil
}

// settle has the most outward part of this process tell of itself, where somebody may ask.
func (p *parts) settle() {
	if p.tells.Load() == nil {
		return
	}
	var h http.Handler
	switch {
	case p.gateway != nil:
		h = p.gateway.Aside()
	case p.backend != nil:
		h = gateway.Aside(p.token, p.backend.Ready, p.backend)
	default:
		var stop func()
		h, stop = gateway.SchedulerAside(p.engine, p.token)
		p.onClose(func() error { stop(); return nil })
	}
	p.tells.Store(&h)
}

// data is the data plane's configuration of a frontend or a backend.
func (p *parts) data() (rdma.Config, error) {
	t, err := p.config.PeerTLS()
	c := rdma.Config{Listen: p.config.Data, Token: p.token, TLS: t, Logger: p.log}
	if p.config.Provider != "auto" {
		c.Providers = []string{p.config.Provider}
	}
	return c, err
}

// patience is how long a part that serves looks for its scheduler before it goes on without.
const patience = time.Second

// dial says where a patient part's scheduler is.
func (p *parts) dial(t *tls.Config) control.DialOptions {
	return control.DialOptions{Addr: p.config.Scheduler, Token: p.token, TLS: t, Patient: true, Logger: p.log}
}

// openBackend starts a backend, with the scheduler of this process if there is one. also may set
// what the configuration does not have; nil: nothing.
func (p *parts) openBackend(ctx context.Context, also func(*backend.Options)) error {
	data, err := p.data()
	if err != nil {
		return err
	}
	o := backend.Options{Scheduler: p.config.Scheduler, Token: p.token, TLS: data.TLS, Models: p.config.Models,
		Executors: p.config.Executors, Emulate: p.config.Emulate, GPUs: p.config.GPU, Data: data, Logger: p.log}
	if p.server != nil {
		o.Link = func(_ context.Context, h wire.BackendHello, ev control.BackendEvents) (control.BackendLink, error) {
			return p.server.Backend(h, ev)
		}
	} else if p.patient {
		o.Link = func(ctx context.Context, h wire.BackendHello, ev control.BackendEvents) (control.BackendLink, error) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return control.DialBackend(ctx, p.dial(data.TLS), h, ev)
		}
	}
	if also != nil {
		also(&o)
	}
	s, err := backend.Start(ctx, o)
	if err != nil {
		return fmt.Errorf("start backend: %w", err)
	}
	p.backend = s
	p.closes = append(p.closes, s.Stop)
	return nil
}

// openClient dials a frontend, within this process if the scheduler runs here.
func (p *parts) openClient(ctx context.Context) error {
	data, err := p.data()
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	o := frontend.Options{Name: fmt.Sprintf("%s/%d", host, os.Getpid()), Scheduler: p.config.Scheduler, Token: p.token, TLS: data.TLS, Data: data, Logger: p.log}
	if p.server != nil {
		o.Link = func(_ context.Context, h wire.FrontendHello, ev control.FrontendEvents) (control.FrontendLink, error) {
			return p.server.Frontend(h, ev)
		}
	} else if p.patient {
		o.Link = func(ctx context.Context, h wire.FrontendHello, ev control.FrontendEvents) (control.FrontendLink, error) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			return control.DialFrontend(ctx, p.dial(data.TLS), h, ev)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if !p.patient {
		slow := time.AfterFunc(time.Second, func() { p.log.Warn("waiting for the scheduler", "address", o.Scheduler) })
		defer slow.Stop()
	}
	c, err := frontend.Dial(ctx, o)
	if err != nil {
		return err
	}
	p.client = c
	p.onClose(c.Close)
	return nil
}

// openGateway serves REST and gRPC over the client; it needs openClient before.
func (p *parts) openGateway(ctx context.Context) error {
	t, err := p.config.PublicTLS()
	if err != nil {
		return err
	}
	rest, err := control.Listen(p.config.HTTP)
	if err != nil {
		return err
	}
	rpc, err := control.Listen(p.config.GRPC)
	if err != nil {
		rest.Close()
		return err
	}
	p.config.HTTP, p.config.GRPC = rest.Addr().String(), rpc.Addr().String()
	o := gateway.Options{Version: buildVersion(), Token: p.token, TLS: t, Logger: p.log}
	if p.engine != nil {
		o.Scheduler = p.engine
	}
	if p.backend != nil {
		o.Metrics = append(o.Metrics, p.backend)
	}
	g := gateway.New(p.client, o)
	p.gateway = g
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Serve(ctx, rest, rpc); err != nil && ctx.Err() == nil {
			p.fail(fmt.Errorf("gateway: %w", err))
		}
	}()
	p.onClose(func() error { cancel(); <-ended; return nil })
	p.log.Info("gateway listens", "page", p.pageURL(), "rest", rest.Addr().String(), "grpc", rpc.Addr().String())
	return nil
}

// pageURL is where a person looks.
func (p *parts) pageURL() string {
	scheme := "http"
	if p.config.TLS != "" {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(p.config.HTTP)
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return scheme + "://" + net.JoinHostPort(host, port) + "/"
}

// terminal tells whether a person is watching f.
func terminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
