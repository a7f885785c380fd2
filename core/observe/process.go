package observe

import (
	"io"
	"net/http"
	"net/http/pprof"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"downbeat.dev/core/guard"
)

// The paths of a process's state, beside /metrics and, on the separate address, /debug/pprof/. LivePath and ReadyPath
// are the Open Inference Protocol's.
const (
	LivePath  = "/v2/health/live"
	ReadyPath = "/v2/health/ready"
	// ProbePath reports whether this process can serve anything, for probes and load balancers. The protocol's
	// readiness covers every model, so one model without a backend would remove all gateways from their balancer.
	ProbePath = "/healthz/ready"
	// ExplainPath returns the scheduler's explanation of prices, accuracies and drops.
	ExplainPath = "/v2/downbeat/explain"
	// LearnersPath returns the state of this process's learners and the accuracy that they gained.
	LearnersPath = "/v2/downbeat/learners"
	// SessionsPath returns the sessions of applications and their latest frames.
	SessionsPath = "/v2/downbeat/sessions"
)

// IsHealth reports whether a path needs no token. Health is no secret.
func IsHealth(path string) bool { return path == LivePath || path == ReadyPath || path == ProbePath }

// Health is the health of a process, as its outermost part knows it. Its functions may be called concurrently.
type Health struct {
	Ready   func() bool // everything that should be served can be served
	Serving func() bool // something can be served
}

// Sessions writes the sessions of applications as a JSON object whose applications are an array.
type Sessions interface {
	WriteStatus(w io.Writer) error
}

// Process is the published state of a process. It is created before the process's parts, and each part adds to it.
// Methods may be called concurrently.
type Process struct {
	registry  *prometheus.Registry
	health    atomic.Pointer[Health]    // nil: no part has been added yet
	scheduler atomic.Pointer[Scheduler] // nil: it runs elsewhere
	sessions  atomic.Pointer[Sessions]  // nil: there are none
	learners  atomic.Pointer[func() any]
}

// NewProcess returns a Process that is live but not ready, with the metrics of Go's runtime.
func NewProcess() *Process {
	p := &Process{registry: prometheus.NewRegistry()}
	p.Register(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newProcessorWaits())
	return p
}

// Register adds metrics. It panics if a metric with the same name and labels exists.
func (p *Process) Register(all ...prometheus.Collector) { p.registry.MustRegister(all...) }

// SetHealth sets the source of the process's health. A later call replaces it.
func (p *Process) SetHealth(h Health) { p.health.Store(&h) }

// SetScheduler adds a scheduler's metrics and explanations. A process has at most one.
func (p *Process) SetScheduler(s *Scheduler) {
	p.Register(s)
	p.scheduler.Store(s)
}

// Scheduler returns the scheduler, or nil if it runs elsewhere.
func (p *Process) Scheduler() *Scheduler { return p.scheduler.Load() }

// SetSessions sets the source of the applications' sessions.
func (p *Process) SetSessions(s Sessions) { p.sessions.Store(&s) }

// SetLearners sets the source of the learners' state: tell returns a value that becomes a JSON array, and may be
// called concurrently.
func (p *Process) SetLearners(tell func() any) { p.learners.Store(&tell) }

// Routes registers the process's routes, except for its profiles, on the mux of a gateway, which protects them.
func (p *Process) Routes(mux *http.ServeMux) {
	mux.HandleFunc("GET "+LivePath, func(w http.ResponseWriter, _ *http.Request) {
		guard.WriteJSON(w, http.StatusOK, map[string]bool{"live": true})
	})
	mux.HandleFunc("GET "+ReadyPath, func(w http.ResponseWriter, _ *http.Request) {
		h := p.health.Load()
		writeReady(w, h != nil && h.Ready())
	})
	mux.HandleFunc("GET "+ProbePath, func(w http.ResponseWriter, _ *http.Request) {
		h := p.health.Load()
		writeReady(w, h != nil && h.Serving())
	})

	// Leave out a metric that fails, so that the others are still served.
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET "+ExplainPath, p.writeExplanation)
	mux.HandleFunc("GET "+SessionsPath, p.writeSessions)
	mux.HandleFunc("GET "+LearnersPath, p.writeLearners)
	p.planRoutes(mux)
}

// Handler serves all routes to callers with the token (empty: to callers on this host), and health to everyone.
func (p *Process) Handler(token string) http.Handler {
	mux := http.NewServeMux()
	p.Routes(mux)

	// Package pprof registers itself on the default mux, which requires no token, so register it on this one.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return guard.RequireToken(token, IsHealth, mux)
}

func writeReady(w http.ResponseWriter, ready bool) {
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
	}
	guard.WriteJSON(w, status, map[string]bool{"ready": ready})
}

func (p *Process) writeExplanation(w http.ResponseWriter, _ *http.Request) {
	s := p.scheduler.Load()
	if s == nil {
		guard.Refuse(w, http.StatusNotFound,
			"path "+ExplainPath+": the scheduler runs in another process: ask at the address of its flag -metrics, 127.0.0.1:8002 by default")
		return
	}

	x, err := s.Explain()
	if err != nil {
		guard.Refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	guard.WriteJSON(w, http.StatusOK, x)
}

func (p *Process) writeLearners(w http.ResponseWriter, _ *http.Request) {
	all := any([]struct{}{})
	if tell := p.learners.Load(); tell != nil {
		all = (*tell)()
	}
	guard.WriteJSON(w, http.StatusOK, map[string]any{"learners": all})
}

func (p *Process) writeSessions(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if s := p.sessions.Load(); s != nil {
		_ = (*s).WriteStatus(w) // the caller has gone
		return
	}
	_, _ = io.WriteString(w, `{"applications":[]}`+"\n")
}
