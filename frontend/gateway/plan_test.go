package gateway

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"downbeat.dev/core/engine"
	"downbeat.dev/core/observe"
)

// TestPlansOverREST: an operator sees the placement, requests a plan, applies it, and gets an error for invalid
// requests.
func TestPlansOverREST(t *testing.T) {
	g := serveFamily(t)
	s := httptest.NewServer(g.rest.Handler)
	t.Cleanup(func() { http.DefaultClient.CloseIdleConnections(); s.Close(); g.grpc.Stop() })

	var p engine.ProposedPlan
	code, _, text := call(t, "GET", s.URL+observe.PlanPath+"/proposal"+"?parts=1&moves=1", nil)
	if err := json.Unmarshal(text, &p); err != nil || code != http.StatusOK || p.Number != 1 || len(p.Models) != 2 || len(p.Steps) != 0 {
		t.Fatalf("proposal: %d %s: %v", code, text, err)
	}
	plan, err := json.Marshal(p.Plan)
	if err != nil {
		t.Fatal(err)
	}

	var now engine.PlanStatus
	code, _, text = call(t, "POST", s.URL+observe.PlanPath, strings.NewReader(string(plan)))
	if err := json.Unmarshal(text, &now); err != nil || code != http.StatusOK || now.State != engine.PlanApplied || now.Number != 1 {
		t.Fatalf("apply: %d %s: %v", code, text, err)
	}
	code, _, text = call(t, "GET", s.URL+observe.PlanPath, nil)
	if err := json.Unmarshal(text, &now); err != nil || code != http.StatusOK || len(now.GPUs) != 1 || len(now.GPUs[0].Models) != 2 {
		t.Errorf("show: %d %s: %v", code, text, err)
	}

	for _, x := range []struct {
		method, path, body, want string
		code                     int
	}{
		{"POST", observe.PlanPath, string(plan), "older than what runs", 409},
		{"POST", observe.PlanPath, `{"number":2,"models":[{"model":"gone","version":"1"}]}`, "no backend has it", 409},
		{"POST", observe.PlanPath, `{"number":`, "want {", 400},
		{"POST", observe.PlanPath, `{"number":2} more`, "want the end", 400},
		{"GET", observe.PlanPath + "/proposal" + "?parts=many", "", "want a number", 400},
		{"GET", observe.PlanPath + "/proposal" + "?moves=2", "", "0 to 1", 400},
		{"GET", observe.PlanPath + "/proposal" + "?parts=5", "", "sub-clusters", 400},
	} {
		code, _, text := call(t, x.method, s.URL+x.path, strings.NewReader(x.body))
		if code != x.code || !strings.Contains(string(text), x.want) {
			t.Errorf("%s %s %s: %d %s; want %d and %q", x.method, x.path, x.body, code, text, x.code, x.want)
		}
	}

	// Rollback to the same plan: there is nothing to do.
	if code, _, text := call(t, "POST", s.URL+observe.PlanPath+"/rollback", nil); code != http.StatusOK || !strings.Contains(string(text), "rolled back") {
		t.Errorf("roll back: %d %s", code, text)
	}
}
