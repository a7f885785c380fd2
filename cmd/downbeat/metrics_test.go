//go:build linux

package main

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"downbeat.dev/core/arrivals"
	"downbeat.dev/core/model"
)

// checkMetrics: what a whole process exports reads as Prometheus's text, is named by its
// conventions, and is what docs/METRICS.md lists, with its kind, labels and meaning.
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
	for r := range model.ReasonCount {
		if name := "`" + r.String() + "`"; r > 0 && !bytes.Contains(page, []byte(name)) {
			t.Errorf("docs/METRICS.md does not name the reason %s", name)
		}
	}
	listed := listedMetrics(t, string(page))
	for name, kind := range families {
		if kind == "counter" && !strings.HasSuffix(name, "_total") {
			t.Errorf("counter %s does not end in _total", name)
		}
		if !strings.HasPrefix(name, "downbeat_") {
			continue
		}
		if want := "# HELP " + name + " " + listed[name].help() + "\n"; !bytes.Contains(text, []byte(want)) {
			t.Errorf("%s is not exported with the text of docs/METRICS.md: want %q", name, want)
		}
		if labels, sampled := exportedLabels(text, name); listed[name].kind != kind || sampled && !slices.Equal(listed[name].labels, labels) {
			t.Errorf("%s is exported as %s with labels %q, and docs/METRICS.md lists %q with %q", name, kind, labels, listed[name].kind, listed[name].labels)
		}
	}
	for name := range listed {
		// Those of the memory manager need layers; the others all are there after some load.
		if families[name] == "" && !strings.HasPrefix(name, "downbeat_memory_") && !strings.HasPrefix(name, "downbeat_learner_") {
			t.Errorf("docs/METRICS.md lists %s, which nobody exports", name)
		}
	}
}

// TestUnsampledMetricsHaveTheListedTexts reads the texts of the memory manager's and the learners' metrics from the
// source: the process of the test above exports none of them.
func TestUnsampledMetricsHaveTheListedTexts(t *testing.T) {
	page, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	var source []byte
	for _, path := range []string{"../../backend/metrics.go", "../../backend/learn/metrics_linux.go"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		source = append(source, text...)
	}

	compared := 0
	for name, m := range listedMetrics(t, string(page)) {
		if strings.HasPrefix(name, "downbeat_memory_") || strings.HasPrefix(name, "downbeat_learner_") {
			compared++
			if want := strconv.Quote(name) + ", " + strconv.Quote(m.help()); !bytes.Contains(source, []byte(want)) {
				t.Errorf("no %s in the source", want)
			}
		}
	}
	if compared < 16 {
		t.Errorf("compared %d texts, want 16 at least", compared)
	}
}

// listedMetric is a row of docs/METRICS.md.
type listedMetric struct {
	kind    string
	labels  []string // sorted
	meaning string
}

// help returns the text that Prometheus gets: a sentence of the page's words, without its marks and its references to
// decisions.
func (m listedMetric) help() string {
	text := regexp.MustCompile(` \((?:docs/decisions/|decision )\d+\)`).ReplaceAllString(strings.ReplaceAll(m.meaning, "`", ""), "")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// listedMetrics returns the rows of the tables of docs/METRICS.md. The text above a table names its labels; a row adds to
// them or replaces them.
func listedMetrics(t *testing.T, page string) map[string]listedMetric {
	t.Helper()
	sentence := regexp.MustCompile("[Ll]abels? (?:is|are) (`[a-z]+`(?: and `[a-z]+`)*):$")
	row := regexp.MustCompile("^\\| `(downbeat_[a-z_]+)` \\| ([a-z]+)([^|]*) \\| (.*) \\|$")
	name := regexp.MustCompile("`([a-z]+)`")

	all, above := map[string]listedMetric{}, []string(nil)
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "## ") {
			above = nil
		}
		if m := sentence.FindStringSubmatch(line); m != nil {
			above = namesIn(name, m[1])
		}
		m := row.FindStringSubmatch(line)
		if m == nil {
			continue
		}

		own := namesIn(name, m[3])
		if len(own) == 0 && !strings.Contains(m[3], "no label") || strings.Contains(m[3], "+") {
			own = append(own, above...)
		}
		slices.Sort(own)
		all[m[1]] = listedMetric{kind: m[2], labels: own, meaning: m[4]}
	}

	if len(all) < 50 {
		t.Errorf("docs/METRICS.md lists %d metrics that this test understands, want 50 at least", len(all))
	}
	return all
}

func namesIn(name *regexp.Regexp, text string) (all []string) {
	for _, m := range name.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// exportedLabels returns the labels of a metric's first sample, but for a histogram's le.
func exportedLabels(text []byte, name string) (labels []string, sampled bool) {
	m := regexp.MustCompile(`(?m)^` + name + `(?:_sum)?(?:\{(.*)\})? `).FindSubmatch(text)
	if m == nil {
		return nil, false
	}
	for _, l := range regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`).FindAllSubmatch(m[1], -1) {
		labels = append(labels, string(l[1]))
	}
	slices.Sort(labels)
	return labels, true
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
	waitFor(t, func() bool { // the scheduler's queues are sampled four times a second
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
