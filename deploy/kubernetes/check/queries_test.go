package check

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// TestQueriesParse: Prometheus understands every expression of the alerts and of the dashboard.
func TestQueriesParse(t *testing.T) {
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	text, err := os.ReadFile("../chart/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &alerts); err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{}
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			queries["alert "+r.Alert] = r.Expr
		}
	}

	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	if text, err = os.ReadFile("../chart/files/dashboard.json"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	// Grafana fills its variables in before it asks.
	fill := strings.NewReplacer("$__rate_interval", "1m", "$namespace", ".*", "$model", ".*")
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries["panel "+p.Title+" "+target.RefID] = fill.Replace(target.Expr)
		}
	}

	if len(queries) < 20 {
		t.Errorf("only %d queries found", len(queries))
	}
	for name, query := range queries {
		if _, err := parser.ParseExpr(query); err != nil {
			t.Errorf("%s: %v in %s", name, err, query)
		}
	}
}
