//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

const chartFiles = "../../deploy/kubernetes/chart/files/"

// chartQueries returns every expression of the chart's alerts and dashboard, by where it stands.
func chartQueries(t *testing.T) map[string]string {
	t.Helper()
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
		Templating struct {
			List []struct {
				Name  string
				Query any
			}
		}
	}
	for name, read := range map[string]func([]byte) error{
		"alerts.yaml":    func(text []byte) error { return yaml.Unmarshal(text, &alerts) },
		"dashboard.json": func(text []byte) error { return json.Unmarshal(text, &dashboard) },
	} {
		text, err := os.ReadFile(chartFiles + name)
		if err != nil {
			t.Fatal(err)
		}
		if err := read(text); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}

	all := map[string]string{}
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = r.Expr
		}
	}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			all["panel "+p.Title+" "+target.RefID] = target.Expr
		}
	}
	for _, v := range dashboard.Templating.List {
		if q, asks := v.Query.(map[string]any); asks {
			all["variable "+v.Name], _ = q["query"].(string)
		}
	}
	return all
}

var (
	exportedSample = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? \S+$`)
	labelName      = regexp.MustCompile(`([a-z_]+)=~?"`)
	askedMetric    = regexp.MustCompile(`(downbeat_[a-z_]+)(?:\{([^}]*)\})?`)
	askedBy        = regexp.MustCompile(`(?:by \(|label_values\([a-z_]+, )([a-z_, ]+)\)`)
)

// checkQueries: every metric that the chart's alerts and dashboard ask for is exported, with the labels that they
// ask by. Prometheus adds namespace and instance; the memory manager's metrics need layers.
func checkQueries(t *testing.T, exported []byte) {
	t.Helper()
	labels := map[string]map[string]bool{}
	for _, m := range exportedSample.FindAllSubmatch(exported, -1) {
		name := string(m[1])
		if labels[name] == nil {
			labels[name] = map[string]bool{"namespace": true, "instance": true}
		}
		for _, label := range labelName.FindAllSubmatch(m[2], -1) {
			labels[name][string(label[1])] = true
		}
	}

	queries := chartQueries(t)
	if len(queries) < 40 {
		t.Errorf("only %d queries found", len(queries))
	}
	for where, query := range queries {
		asked := askedMetric.FindAllStringSubmatch(query, -1)
		if len(asked) == 0 {
			t.Errorf("%s: no metric of ours in %s", where, query)
		}
		known := map[string]bool{}
		for _, m := range asked {
			if strings.HasPrefix(m[1], "downbeat_memory_") {
				known["place"], known["from"], known["to"] = true, true, true
				continue
			}
			if labels[m[1]] == nil {
				t.Errorf("%s asks for %s, which nobody exports", where, m[1])
			}
			maps.Copy(known, labels[m[1]])
			for _, label := range labelName.FindAllStringSubmatch(m[2], -1) {
				if !labels[m[1]][label[1]] {
					t.Errorf("%s: %s has no label %s", where, m[1], label[1])
				}
			}
		}

		for _, by := range askedBy.FindAllStringSubmatch(query, -1) {
			for _, label := range strings.Split(by[1], ", ") {
				if !known[label] {
					t.Errorf("%s asks by %s, a label that none of its metrics has", where, label)
				}
			}
		}
	}
}

// TestQueriesAskForListedMetrics needs no deployment: what the chart asks for stands in docs/METRICS.md.
func TestQueriesAskForListedMetrics(t *testing.T) {
	page, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	queries := chartQueries(t)
	for _, where := range slices.Sorted(maps.Keys(queries)) {
		for _, m := range askedMetric.FindAllStringSubmatch(queries[where], -1) {
			name := m[1]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
			if !bytes.Contains(page, []byte("`"+name+"`")) {
				t.Errorf("%s asks for %s, which docs/METRICS.md does not list", where, m[1])
			}
		}
	}
}
