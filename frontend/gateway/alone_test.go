package gateway

import (
	"encoding/json"
	"strings"
	"testing"

	"downbeat.dev/core/observe"
	"downbeat.dev/frontend/gateway/page"
)

// TestPageWithoutScheduler: the scheduler of this gateway runs in another process.
func TestPageWithoutScheduler(t *testing.T) {
	server, s := rest(t, Options{})
	var d page.Data
	if code, _, text := call(t, "GET", server.URL+observe.ExplainPath, nil); code != 404 || !strings.Contains(string(text), "the scheduler runs in another process") {
		t.Errorf("explain: %d %s", code, text)
	}
	_, _, text := call(t, "GET", server.URL+"/v2/downbeat/page", nil)
	if err := json.Unmarshal(text, &d); err != nil || d.Scheduler || len(d.Models) != len(testModels) || strings.Contains(string(text), `"batches":null`) {
		t.Errorf("%v %s", err, text)
	}
	chromium := findChromium(t)
	if dom := browse(t, chromium, server.URL+"/", "--dump-dom"); !strings.Contains(dom, "The scheduler runs in another process") || !strings.Contains(dom, "some models lack a backend") {
		t.Errorf("%.2000s", dom)
	}
	s.Lose()
	if dom := browse(t, chromium, server.URL+"/", "--dump-dom"); !strings.Contains(dom, "no scheduler") {
		t.Errorf("%.2000s", dom)
	}
}
