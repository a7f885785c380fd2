//go:build linux

package downbeat

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"downbeat.dev/core/control"
	"downbeat.dev/frontend/gateway"

	"github.com/prometheus/client_golang/prometheus"
)

// openMetrics serves health, metrics and profiles of what runs here on an address of their own; empty: nowhere. It comes
// before the parts, so that whoever asks can tell slow starts and ends from death; tellAll tells it that they are open.
func (s *System) openMetrics() error {
	addr := s.config.Metrics
	if addr == "" {
		return nil
	}

	// Until the parts are there, the address answers that they are not: a probe must not find a closed port.
	starting := gateway.Aside(s.token, func() bool { return false })
	s.tells.Store(&starting)

	if err := s.config.CheckListener("metrics", addr); err != nil {
		return err
	}

	t, err := s.config.PublicTLS()
	if err != nil {
		return err
	}
	ln, err := control.Listen(addr)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}

	// The address may have named port 0: callers read the one that was given.
	s.config.Metrics = ln.Addr().String()
	s.log.Info("metrics, health and profiles", "address", s.config.Metrics)
	ln = loggedListener{gateway.BoundAside(ln), s.log}
	if t != nil {
		ln = tls.NewListener(ln, t)
	}

	// The handler is looked up at each call: tellAll puts another in its place.
	server := gateway.AsideServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.tells.Load()).ServeHTTP(w, r) }))
	go func() {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.fail(fmt.Errorf("metrics: %w", err))
		}
	}()

	s.onClose(server.Close)
	return nil
}

// tellOutermost has the most outward part of this process tell of itself, where somebody may ask.
func (s *System) tellOutermost() {
	if s.tells.Load() == nil {
		return
	}

	var h http.Handler
	switch {
	case s.gateway != nil:
		h = s.gateway.Aside()
	case s.backend != nil:
		h = gateway.Aside(s.token, s.backend.Ready, s.backend)
	case s.engine != nil:
		var stop func()
		h, stop = gateway.SchedulerAside(s.engine, s.token, s.leadMetrics()...)
		s.onClose(func() error { stop(); return nil })
	default:
		h = gateway.Aside(s.token, s.client.Ready)
	}
	s.tells.Store(&h)
}

// leadMetrics tell whether a scheduler leads.
func (s *System) leadMetrics() []prometheus.Collector {
	gauge := func(name, help string, value func(epoch uint64, leads bool) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(s.server.Leads()) })
	}
	return []prometheus.Collector{
		gauge("downbeat_scheduler_leads", "1 while this scheduler leads, 0 while it stands by.", func(_ uint64, leads bool) float64 {
			if leads {
				return 1
			}
			return 0
		}),
		gauge("downbeat_scheduler_epoch", "How often the cluster has changed its leader.", func(epoch uint64, _ bool) float64 { return float64(epoch) }),
	}
}

// loggedListener logs why no connection can be accepted, as when descriptors run out. Servers of packages net/http and
// grpc try again and say nothing.
type loggedListener struct {
	net.Listener
	log *slog.Logger
}

// Accept implements net.Listener.
func (l loggedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		l.log.Error("no connection can be accepted", "address", l.Addr().String(), "err", err)
	}
	return conn, err
}
