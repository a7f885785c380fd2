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

// The paths on which a process tells of itself, beside /metrics and, on an address of its own, /debug/pprof/. LivePath
// and ReadyPath are the Open Inference Protocol's.
const (
	LivePath  = "/v2/health/live"
	ReadyPath = "/v2/health/ready"
	// ProbePath asks whether this process can serve anything, for probes and balancers. The protocol's readiness asks
	// for every model, so that one model without a backend would take all gateways out of their balancer.
	ProbePath = "/healthz/ready"
	// ExplainPath asks for the scheduler's explanation of prices, accuracies and drops.
	ExplainPath = "/v2/downbeat/explain"
	// LearnersPath asks how the learners of this process stand, and what learning has gained.
	LearnersPath = "/v2/downbeat/learners"
	// SessionsPath asks for the sessions of applications and their latest frames.
	SessionsPath = "/v2/downbeat/sessions"
)

// IsHealth tells whether a path needs no token: health is no secret.
func IsHealth(path string) bool { return path == LivePath || path == ReadyPath || path == ProbePath }

// Health is what the most outward part of a process says of it. Its functions may be called from any goroutine.
type Health struct {
	Ready   func() bool // all that should be served can be
	Serving func() bool // something can be served
}

// Sessions writes the sessions of applications as a JSON object whose applications are an array.
type Sessions interface {
	WriteStatus(w io.Writer) error
}

// Process is what a process tells of itself, made before its parts; each part adds what it knows. Methods may be called
// from any goroutine.
type Process struct {
	registry  *prometheus.Registry
	health    atomic.Pointer[Health]    // nil: the parts are not there yet
	scheduler atomic.Pointer[Scheduler] // nil: it runs elsewhere
	sessions  atomic.Pointer[Sessions]  // nil: there are none
	learners  atomic.Pointer[func() any]
}

// NewProcess returns a process that lives, is not ready, and tells of Go's runtime alone.
func NewProcess() *Process {
	p := &Process{registry: prometheus.NewRegistry()}
	p.Register(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newProcessorWaits())
	return p
}

// Register adds metrics. It panics where a metric of the same name and labels is there already.
func (p *Process) Register(all ...prometheus.Collector) { p.registry.MustRegister(all...) }

// SetHealth says who knows whether the process is ready; the last one who is set counts.
func (p *Process) SetHealth(h Health) { p.health.Store(&h) }

// SetScheduler adds a scheduler's metrics and explanations. A process has one at most.
func (p *Process) SetScheduler(s *Scheduler) {
	p.Register(s)
	p.scheduler.Store(s)
}

// Scheduler returns the one that was set; nil: it runs elsewhere.
func (p *Process) Scheduler() *Scheduler { return p.scheduler.Load() }

// SetSessions says who knows the sessions of applications.
func (p *Process) SetSessions(s Sessions) { p.sessions.Store(&s) }

// SetLearners says who tells of learners: tell returns what becomes an array in JSON, and may be called from any goroutine.
func (p *Process) SetLearners(tell func() any) { p.learners.Store(&tell) }

// Routes registers what the process tells, but for its profiles, with the routes of a gateway, which guards them.
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

	// A metric that cannot be told is left out, so that the others are not lost with it.
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET "+ExplainPath, p.writeExplanation)
	mux.HandleFunc("GET "+SessionsPath, p.writeSessions)
	mux.HandleFunc("GET "+LearnersPath, p.writeLearners)
	p.planRoutes(mux)
}

// Handler serves all that the process tells to who sends the token (empty: to callers of this host), and its health to
// anyone.
func (p *Process) Handler(token string) http.Handler {
	mux := http.NewServeMux()
	p.Routes(mux)

	// The pprof package registers itself on the default mux, which asks for no token: ours does.
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
			"path "+ExplainPath+": the scheduler runs in another process: ask at the address that its configuration names under metrics")
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
		_ = (*s).WriteStatus(w) // whoever asked has gone
		return
	}
	_, _ = io.WriteString(w, `{"applications":[]}`+"\n")
}
