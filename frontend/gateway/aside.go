package gateway

import (
	"net/http"
	"net/http/pprof"

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
	return aside(token, ready, registry)
}

// SchedulerAside is Aside for a scheduler without a gateway, ready as long as it lives: its backends
// come only then. stop ends its looks at the scheduler.
func SchedulerAside(s Scheduler, token string) (h http.Handler, stop func()) {
	registry := newRegistry()
	w := newWatch(s, registry)
	closing, ended := make(chan struct{}), make(chan struct{})
	go func() { w.run(closing); close(ended) }()
	return aside(token, func() bool { return true }, registry), func() { close(closing); <-ended }
}

// Aside is the function Aside for this gateway.
func (g *Gateway) Aside() http.Handler { return aside(g.o.Token, g.ready, g.metrics.registry) }

// newRegistry has what every process tells of itself.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

func aside(token string, ready func() bool, registry *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	healthRoutes(mux, ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return authorized(token, mux)
}

// healthRoutes registers liveness and readiness as the Open Inference Protocol has them.
func healthRoutes(mux *http.ServeMux, ready func() bool) {
	mux.HandleFunc("GET /v2/health/live", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]bool{"live": true})
	})
	mux.HandleFunc("GET /v2/health/ready", func(w http.ResponseWriter, _ *http.Request) {
		now := ready()
		writeReady(w, map[string]any{"ready": now}, now)
	})
}
