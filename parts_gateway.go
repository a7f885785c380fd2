//go:build linux

package downbeat

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"downbeat.dev/core/control"
	"downbeat.dev/core/observe/tracing"
	"downbeat.dev/frontend/gateway"
	"downbeat.dev/frontend/gateway/clients"

	"go.opentelemetry.io/otel/trace"
)

// entrance is what a gateway takes from outside: its files and its ports.
type entrance struct {
	tls        *tls.Config
	clients    *clients.Set          // nil: one secret opens the API
	restricted *gateway.Restrictions // nil: none
	rest, rpc  net.Listener
}

// openEntrance reads the gateway's files and takes its ports. Start calls it before any part opens: loading models
// takes long, and a wrong path or a taken port must be said before it. Calls that come meanwhile wait.
func (s *System) openEntrance() (err error) {
	in, p := &s.entrance, &s.config.Protocol
	if in.tls, err = s.config.PublicTLS(); err != nil {
		return err
	}

	if p.ClientTokensFile != "" {
		if in.clients, err = clients.Open(p.ClientTokensFile, s.token, s.logOf("frontend")); err != nil {
			return err
		}
	}

	if p.RestrictedFile != "" {
		if in.restricted, err = gateway.OpenRestrictions(p.RestrictedFile); err != nil {
			return err
		}
	}

	if in.rest, in.rpc, err = s.gatewayListeners(); err != nil {
		return err
	}

	// A gateway closes its listeners at its end. If no gateway opens, nothing else does.
	s.onClose(func() error {
		for _, ln := range []net.Listener{in.rest, in.rpc} {
			if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				return err
			}
		}
		return nil
	})
	return nil
}

// openGateway serves REST and gRPC over the client.
func (s *System) openGateway(ctx context.Context) error {
	o, err := s.gatewayOptions(ctx)
	if err != nil {
		return err
	}

	g := gateway.New(s.client, o)
	s.gateway = g

	// The gateway serves until Close: Start's ctx bounds only the start.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := g.Serve(ctx, s.entrance.rest, s.entrance.rpc); err != nil && ctx.Err() == nil {
			s.fail(fmt.Errorf("gateway: %w", err))
		}
	}()

	s.onClose(func() error { cancel(); <-ended; return nil })
	s.log.Info("gateway listens", "page", s.PageURL(), "rest", s.config.HTTP, "grpc", s.config.GRPC)
	return nil
}

// gatewayOptions connects to the span collector and opens the applications.
func (s *System) gatewayOptions(ctx context.Context) (o gateway.Options, err error) {
	p := &s.config.Protocol
	o = gateway.Options{
		Name:         p.ServerName,
		Version:      s.config.Version,
		Token:        s.token,
		TLS:          s.entrance.tls,
		Clients:      s.entrance.clients,
		Restricted:   s.entrance.restricted,
		ClientMemory: p.ClientSHM,
		DeviceMemory: s.config.DeviceMemory,

		StrictReadiness: p.StrictReadiness,
		TritonMetrics:   p.TritonMetrics,
		LogLevels:       s.levels,
		Access:          s.access,
		Process:         s.process,
		Logger:          s.logOf("frontend"),
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
