package observe

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/plan"
)

// fixedStats is an engine with constant statistics.
type fixedStats engine.Stats

func (s fixedStats) Stats() engine.Stats { return engine.Stats(s) }

func (s fixedStats) Explain() (engine.Explanation, error) {
	return engine.Explanation{}, engine.ErrClosed
}

// ask answers a call from this host.
func ask(h http.Handler, path, token string) (status int, text string) {
	r := httptest.NewRequest("GET", "http://localhost"+path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// TestProcessTells shows that anyone may ask for health, and that the rest requires the token.
func TestProcessTells(t *testing.T) {
	p := NewProcess()
	const token = "0123456789abcdef"
	h := p.Handler(token)
	expect := func(path, with string, want int) {
		t.Helper()
		if status, text := ask(h, path, with); status != want {
			t.Errorf("%s: %d %.100s, want %d", path, status, text, want)
		}
	}

	// Before its parts are open the process is alive, and nothing more.
	expect(LivePath, "", 200)
	expect(ReadyPath, "", 503)
	expect(ProbePath, "", 503)

	var ready atomic.Bool
	p.SetHealth(Health{Ready: ready.Load, Serving: func() bool { return true }})
	expect(ReadyPath, "", 503)
	expect(ProbePath, "", 200)
	ready.Store(true)
	expect(ReadyPath, "", 200)

	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", "/debug/pprof/profile?seconds=0", SessionsPath, LearnersPath} {
		expect(path, "", 401)
	}
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/goroutine?debug=1", SessionsPath, LearnersPath} {
		expect(path, token, 200)
	}

	// A scheduler may come later; its explanation says when it has ended.
	expect(ExplainPath, token, 404)
	expect(PlanPath, token, 404)
	expect(PlanPath, "", 401)
	p.SetScheduler(newScheduler(fixedStats{}))
	expect(ExplainPath, token, 503)
}

// TestMetricsOutliveABadOne shows that a metric that cannot be exported, here because two have one name, costs only
// itself.
func TestMetricsOutliveABadOne(t *testing.T) {
	p := NewProcess()
	p.SetScheduler(newScheduler(fixedStats{Load: []engine.LoadStats{{SubCluster: "a"}, {SubCluster: "a"}},
		Models: []engine.ModelStats{{ID: 1, Name: "m", Version: "1", Queued: 3}}}))
	status, text := ask(p.Handler(""), "/metrics", "")
	if status != 200 || !strings.Contains(text, `downbeat_inference_queued_requests{model="m",version="1"} 3`) {
		t.Errorf("status %d: %.300s", status, text)
	}
}

// TestSizesOfAPoolAddUp shows that autoscalers can add up the advice for the sub-clusters of a pool.
func TestSizesOfAPoolAddUp(t *testing.T) {
	p := NewProcess()
	p.SetScheduler(newScheduler(fixedStats{Load: []engine.LoadStats{
		{SubCluster: "h200", Pool: "h200", Advice: plan.Advice{GPUs: 3}}, {SubCluster: "h200-2", Pool: "h200", Advice: plan.Advice{GPUs: 5}}}}))
	_, text := ask(p.Handler(""), "/metrics", "")
	for _, want := range []string{`downbeat_scheduler_wanted_gpus{pool="h200",subcluster="h200"} 3`, `downbeat_scheduler_wanted_gpus{pool="h200",subcluster="h200-2"} 5`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is missing in %.3000s", want, text)
		}
	}
}

type twoSessions struct{}

func (twoSessions) WriteStatus(w io.Writer) error {
	_, err := io.WriteString(w, `{"applications":[1,2]}`)
	return err
}

// TestSessionsAreTold shows the sessions of applications, and none without applications.
func TestSessionsAreTold(t *testing.T) {
	p := NewProcess()
	if _, text := ask(p.Handler(""), SessionsPath, ""); text != `{"applications":[]}`+"\n" {
		t.Errorf("without applications: %s", text)
	}
	p.SetSessions(twoSessions{})
	if _, text := ask(p.Handler(""), SessionsPath, ""); text != `{"applications":[1,2]}` {
		t.Errorf("with applications: %s", text)
	}
}

// TestLearnersAreTold shows the learners, and none without learners.
func TestLearnersAreTold(t *testing.T) {
	p := NewProcess()
	for _, want := range []string{`{"learners":[]}`, `{"learners":[7]}`} {
		if _, text := ask(p.Handler(""), LearnersPath, ""); strings.TrimSpace(text) != want {
			t.Errorf("learners: %s, want %s", text, want)
		}
		p.SetLearners(func() any { return []int{7} })
	}
}
