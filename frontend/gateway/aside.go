package gateway

import (
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Aside serves what a process tells of itself on an address of its own: whether it lives and is
// ready, on a gateway's paths and to anyone; /metrics and Go's profiles under /debug/pprof/ to who
// sends the token as a gateway demands it (empty: to anyone). ready must be safe from any goroutine.
func Aside(token string, ready func() bool, all ...prometheus.Collector) http.Handler {
	registry := newRegistry()
	registry.MustRegister(all...)
	return asideHandler(token, ready, ready, registry)
}

// SchedulerAside is Aside for a scheduler without a gateway, ready as long as it lives: its backends
// come only then. stop ends its looks at the scheduler.
func SchedulerAside(s Scheduler, token string, more ...prometheus.Collector) (h http.Handler, stop func()) {
	registry := newRegistry()
	registry.MustRegister(more...)
	w := newWatch(s, registry)

	// The returned stop waits until the last look has ended: the scheduler may be closed right after it.
	closing, ended := make(chan struct{}), make(chan struct{})
	go func() { w.runLooks(closing); close(ended) }()
	lives := func() bool { return true }

	// A gateway's explanations stand among its own routes; without one they stand here.
	mux := http.NewServeMux()
	mux.Handle("/", asideHandler(token, lives, lives, registry))
	mux.Handle("GET "+explainPath, requireToken(token, explain(s)))
	return mux, func() { close(closing); <-ended }
}

// Aside is the function Aside for this gateway.
func (g *Gateway) Aside() http.Handler {
	return asideHandler(g.o.Token, g.isReady, g.isServing, g.metrics.registry)
}

// Limits of the address that a process tells of itself on. A profile may take as long as asideWrite.
const (
	asideRead        = 5 * time.Second
	asideWrite       = 5 * time.Minute
	asideIdle        = 2 * time.Minute
	asideConnections = 1024
	asidePerAddress  = 256
)

// AsideServer is the server of an Aside handler: callers who send, take or ask nothing are let go.
func AsideServer(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: time.Second, ReadTimeout: asideRead, WriteTimeout: asideWrite, IdleTimeout: asideIdle, MaxHeaderBytes: 64 << 10}
}

// BoundAside bounds the connections of an Aside's listener. At the bound, the one that has been silent longest is
// closed for the one that comes.
func BoundAside(l net.Listener) net.Listener {
	return newConnections(connectionLimits{all: asideConnections, perAddress: asidePerAddress}, true).boundListener(l)
}

// newRegistry has what every process tells of itself.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

func asideHandler(token string, ready, serving func() bool, registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	healthRoutes(mux, ready, serving)
	mux.Handle("GET /metrics", metricsOf(registry))

	// The pprof package registers itself on the default mux, which asks for no token: ours does.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return requireToken(token, mux)
}

// metricsOf serves a registry. A metric that cannot be told is left out, so that the others are not lost
// with it.
func metricsOf(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}

// probePath asks whether this process can serve anything, for probes and balancers. The protocol's readiness asks
// for every model, so that one model without a backend would take all gateways out of their balancer.
const probePath = "/healthz/ready"

// healthRoutes registers liveness and readiness as the Open Inference Protocol has them, and the probe's readiness.
func healthRoutes(mux *http.ServeMux, ready, serving func() bool) {
	mux.HandleFunc("GET /v2/health/live", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]bool{"live": true})
	})
	for path, isReady := range map[string]func() bool{"GET /v2/health/ready": ready, "GET " + probePath: serving} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			now := isReady()
			writeReady(w, map[string]any{"ready": now}, now)
		})
	}
}
