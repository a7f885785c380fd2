// Package check holds the chart against Helm's own code and its queries against Prometheus's. It is a module of
// its own, so that nobody who builds Downbeat fetches either: `make chart` runs it.
package check

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

const (
	chartDir = "../chart"
	manifest = "../downbeat.yaml" // what the chart makes of its own values
	everyDir = "testdata"         // values, one file for each case
)

var update = flag.Bool("update", false, "write ../downbeat.yaml and the other renderings anew")

// renderChart returns what `helm template downbeat` prints with values beside the chart's own.
func renderChart(t *testing.T, values map[string]any) (string, error) {
	t.Helper()
	c, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	return renderLoaded(c, values)
}

func renderLoaded(c *chart.Chart, values map[string]any) (string, error) {
	release := chartutil.ReleaseOptions{Name: "downbeat", Namespace: "serving", Revision: 1, IsInstall: true}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.34.1", Major: "1", Minor: "34"}
	all, err := chartutil.ToRenderValues(c, values, release, capabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return "", err
	}

	// The order in which Helm installs, so that the text is the same each time.
	delete(files, "downbeat/templates/NOTES.txt")
	_, sorted, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, m := range sorted {
		b.WriteString("---\n# Source: " + m.Name + "\n" + strings.TrimSpace(m.Content) + "\n")
	}
	return b.String(), nil
}

// cases are the values that the chart is tried with.
func cases(t *testing.T) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{"default": {}}
	names, err := filepath.Glob(filepath.Join(everyDir, "*.yaml"))
	if err != nil || len(names) < 2 {
		t.Fatalf("%d files of values, %v", len(names), err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var values map[string]any
		if err := yaml.UnmarshalStrict(text, &values); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[filepath.Base(name)] = values
	}
	return all
}

func TestChartPassesHelmsLint(t *testing.T) {
	for name, values := range cases(t) {
		linted := lint.AllWithKubeVersion(chartDir, values, "serving", &chartutil.KubeVersion{Version: "v1.34.1", Major: "1", Minor: "34"})
		for _, m := range linted.Messages {
			if m.Severity > support.InfoSev { // an icon is only recommended
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// TestManifestIsWhatTheChartMakes: whoever has no Helm applies deploy/kubernetes/downbeat.yaml, and the tests of
// the main module read that file and the renderings of the other cases.
func TestManifestIsWhatTheChartMakes(t *testing.T) {
	head := "# What the chart beside this makes of its own values (`make chart-manifest`), for whoever has no Helm. Its values.yaml says\n" +
		"# what must be there before, docs/DEPLOYMENT.md what to change for GPUs and RDMA. It is made for the namespace `serving`.\n"
	for name, values := range cases(t) {
		text, err := renderChart(t, values)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(everyDir, strings.TrimSuffix(name, ".yaml")+".rendered")
		if name == "default" {
			file, text = manifest, head+text
		}
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}

		kept, err := os.ReadFile(file)
		if err != nil || string(kept) != text {
			t.Errorf("%v: %s is not what the chart makes: run make chart-manifest", err, file)
		}
	}
}

// TestChartRefusesBadValues: each is refused by its name.
func TestChartRefusesBadValues(t *testing.T) {
	for _, c := range []struct {
		values map[string]any
		says   string
	}{
		{map[string]any{"replica": 3}, "replica"},
		{map[string]any{"image": map[string]any{"tag": "latest"}}, "tag"},
		{map[string]any{"image": map[string]any{"digest": "abc"}}, "digest"},
		{map[string]any{"scheduler": map[string]any{"replicas": 0}}, "replicas"},
		{map[string]any{"backends": []any{}}, "backends"},
		{map[string]any{"backends": []any{map[string]any{"kind": "H 200"}}}, "kind"},
		{map[string]any{"backends": []any{map[string]any{"kind": "a"}, map[string]any{"kind": "a"}}}, "appears twice"},
		{map[string]any{"backends": []any{map[string]any{"kind": "a", "lanes": 17}}}, "lanes"},
		{map[string]any{"backends": []any{map[string]any{"kind": "a", "threads": 4, "lanes": 3}}}, "multiple of lanes"},
		{map[string]any{"backends": []any{map[string]any{"kind": "a", "lanes": 2}}}, "multiple of lanes"},
		{map[string]any{"backends": []any{map[string]any{"kind": "a", "gpus": 1, "threads": 2}}}, "threads"},
		{map[string]any{"config": map[string]any{"lanes": 2}}, "lanes"},
		{map[string]any{"autoscaling": map[string]any{"by": "hand"}}, "by"},
		{map[string]any{"autoscaling": map[string]any{"stayUp": -1}}, "stayUp"},
	} {
		if _, err := renderChart(t, c.values); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: error %v, want one that says %q", c.values, err, c.says)
		}
	}
}
