package gateway

import (
	"net/http/httptest"
	"strings"
	"testing"

	"downbeat.dev/core/engine"
)

// fixedStats is a scheduler that always tells the same.
type fixedStats engine.Stats

func (s fixedStats) Stats() engine.Stats { return engine.Stats(s) }

func (s fixedStats) Explain() (engine.Explanation, error) { return engine.Explanation{}, nil }

// TestMetricsOutliveABadOne: a metric that cannot be told, here since two have one name, costs only itself.
func TestMetricsOutliveABadOne(t *testing.T) {
	h, stop := SchedulerAside(fixedStats{Load: []engine.LoadStats{{SubCluster: "a"}, {SubCluster: "a"}},
		Models: []engine.ModelStats{{ID: 1, Name: "m", Version: "1", Queued: 3}}}, "")
	defer stop()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
	if w.Code != 200 || !strings.Contains(w.Body.String(), `downbeat_inference_queued_requests{model="m",version="1"} 3`) {
		t.Errorf("status %d: %.300s", w.Code, w.Body.String())
	}
}
