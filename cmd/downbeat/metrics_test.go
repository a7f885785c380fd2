//go:build linux

package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"downbeat.dev/core/arrivals"
)

// checkMetrics: what a whole process exports reads as Prometheus's text, is named by its
// conventions, and is what docs/METRICS.md lists.
func checkMetrics(t *testing.T, url string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllSubmatch(text, -1) {
		families[string(m[1])] = string(m[2])
	}
	checkQueries(t, text)
	page, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, kind := range families {
		if kind == "counter" && !strings.HasSuffix(name, "_total") {
			t.Errorf("counter %s does not end in _total", name)
		}
		if strings.HasPrefix(name, "downbeat_") && !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("%s is not in docs/METRICS.md", name)
		}
	}
	for _, name := range regexp.MustCompile("`(downbeat_[a-z_]+)`").FindAllSubmatch(page, -1) {
		// Those of the memory manager need layers; the others all are there after some load.
		got := strings.TrimSuffix(strings.TrimSuffix(string(name[1]), "_count"), "_sum")
		if families[got] == "" && !strings.HasPrefix(got, "downbeat_memory_") && !strings.HasPrefix(got, "downbeat_learner_") {
			t.Errorf("docs/METRICS.md lists %s, which nobody exports", got)
		}
	}
}

// clientToken is the token of the test's one client.
const clientToken = "0123456789abcdef"

// failOnce makes one request end without an output, so that its counters are there.
func failOnce(t *testing.T, url string) {
	t.Helper()
	body := `{"parameters":{"timeout":400},"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[0,0,0,0]}]}`
	r, err := http.NewRequest("POST", url+"v2/models/echo/infer", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+clientToken)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode == http.StatusOK || answer.StatusCode == http.StatusUnauthorized {
		t.Errorf("a request with a budget of 400 µs: %s", answer.Status)
	}
}

// addApplication adds an application of one stage to a repository: sessions have metrics where there can be any.
func addApplication(t *testing.T, models string) {
	t.Helper()
	dir := filepath.Join(models, "once")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const text = `latency_ms: 5000
inputs: [ {name: in, datatype: FP32, shape: [4]} ]
stages: [ {name: only, model: echo, inputs: {x: in}, outputs: {y: out}} ]
outputs: [ {name: out, of: out} ]
`
	if err := os.WriteFile(filepath.Join(dir, "application.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestMetricsFollowTheConventions looks at everything that one process exports.
func TestMetricsFollowTheConventions(t *testing.T) {
	c := config(t)
	addApplication(t, c.Models)
	c.Protocol.ClientTokensFile = filepath.Join(t.TempDir(), "clients.yaml")
	if err := os.WriteFile(c.Protocol.ClientTokensFile, []byte("clients: [{name: test, token: "+clientToken+"}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := servedWith(t, c)
	if err := silently(t, func() error { // canaries have metrics where there is one
		return runCanaryStart(t.Context(), []string{"-url", p.PageURL(), "-model", "echo", "-version", "7"})
	}); err != nil {
		t.Fatal(err)
	}
	f := loadFlags{shape: arrivals.Shape{Arrivals: "constant", Popularity: "even", Rate: 50, Span: 100e6, Seed: 1}}
	offer(t, p, f)
	waitFor(t, func() bool { // the scheduler's are looked at four times a second
		failOnce(t, p.PageURL()) // again: on a loaded host a request may end before the scheduler hears of it
		answer, err := http.Get(p.PageURL() + "metrics")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return bytes.Contains(text, []byte("downbeat_scheduler_unserved_total{")) && bytes.Contains(text, []byte("downbeat_inference_queue_depth"))
	})
	checkMetrics(t, p.PageURL()+"metrics")
}
