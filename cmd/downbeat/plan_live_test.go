//go:build linux

package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"downbeat.dev/core/engine"
)

var planShown = engine.PlanStatus{Number: 4, State: engine.PlanApplying, Taken: 3, Left: 2, UnderWay: []engine.PlanStep{{Act: "load", Model: "m:1", GPU: "b/1"}},
	NotServed: []string{"n:1"}, LeftOut: []engine.LeftOutOf{{Model: "m:1", GPU: "b/0", Why: "out of memory"}},
	GPUs: []engine.PlannedGPU{{GPU: "b/0", SubCluster: "s", Memory: 80 << 30, Used: 5 << 18, Models: []engine.ResidentModel{{Model: "k:1", State: "offered"}, {Model: "m:1", State: "warm"}}}}}

// TestPlanShowTellsAll: the step under way, what was left out and why, what is not served, and what each GPU has.
func TestPlanShowTellsAll(t *testing.T) {
	var out strings.Builder
	if err := printPlanStatus(&out, &planShown); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Plan 4 is applying: 3 steps taken, 2 left", "under way: load m:1 on b/1", "left out: m:1 on b/0: out of memory", "n:1", "80 GiB  1.3 MiB", "k:1 m:1 (warm)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// TestProposalTellsWhatChanges: the acts and the time of the loads come first, then what each sub-cluster would serve
// and how many GPUs that asks for. The steps are listed only if asked for.
func TestProposalTellsWhatChanges(t *testing.T) {
	p := engine.ProposedPlan{Plan: engine.Plan{Number: 2}, SubClusters: 2, Moved: 1, LoadSeconds: 12.34,
		Steps: []engine.PlanStep{{Number: 1, Act: "load", Model: "m:1", GPU: "b/1"}, {Number: 2, Act: "warm up", Model: "m:1", GPU: "b/1"},
			{Number: 3, Act: "load", Model: "m:1", GPU: "b/2"}, {Number: 4, Act: "unload", Model: "k:1", GPU: "b/1"}},
		Assignment: []engine.PlannedPart{{GPUs: []string{"b/0"}, Demand: 0.25, Models: []string{"k:1", "n:1"}},
			{GPUs: []string{"b/1", "b/2", "b/3", "b/4", "b/5"}, Demand: 3.5, Models: []string{"m:1"}}}}
	print := func(p *engine.ProposedPlan, steps bool) string {
		t.Helper()
		var out strings.Builder
		if err := printProposal(&out, p, steps); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(out.String()), " ")
	}

	short := print(&p, false)
	for _, want := range []string{"Plan 2: 2 loads, 1 unload on 2 GPUs; loads take about 12.3 s 2 sub-clusters, 1 model moves", "b/0 0.25 k:1 n:1", "b/1 … b/5 (5) 3.50 m:1", "-steps lists the 4 steps"} {
		if !strings.Contains(short, want) {
			t.Errorf("no %q in: %s", want, short)
		}
	}
	if strings.Contains(short, "ACT") {
		t.Errorf("steps that nobody asked for: %s", short)
	}
	if long := print(&p, true); !strings.Contains(long, "1 load m:1 b/1") || !strings.Contains(long, "4 unload k:1 b/1") {
		t.Errorf("no steps: %s", long)
	}

	if text := print(&engine.ProposedPlan{Plan: engine.Plan{Number: 3}, SubClusters: 1}, true); !strings.Contains(text, "Plan 3: no step: every model is where the plan puts it 1 sub-cluster, 0 models move") || strings.Contains(text, "ACT") {
		t.Errorf("a plan without steps: %s", text)
	}
}

// TestMemoryIsInTheUnitThatFits: sizes are read by people, so a GPU's memory isn't 81920.0 MiB.
func TestMemoryIsInTheUnitThatFits(t *testing.T) {
	for n, want := range map[int64]string{0: "-", 40: "40 B", 1 << 10: "1 KiB", 5 << 18: "1.3 MiB", 1 << 20: "1 MiB", 1000 << 20: "1000 MiB", 1<<30 - 1: "1 GiB", 80 << 30: "80 GiB", 3 << 29: "1.5 GiB", 1 << 40: "1024 GiB"} {
		if got := formatMemory(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}

// TestPlansOverHTTP: a dry run asks for what its flags say, apply sends the file and waits for the plan's end, and a
// refusal is told.
func TestPlansOverHTTP(t *testing.T) {
	var asked []string
	left := 2
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		now := planShown
		if left--; left < 0 {
			now.State = engine.PlanApplied
		}
		switch {
		case strings.Contains(string(body), "refuse"):
			http.Error(w, `{"error":"plan refused: older than what runs"}`, http.StatusConflict)
		case strings.Contains(r.URL.Path, "proposal"):
			_ = json.NewEncoder(w).Encode(engine.ProposedPlan{Plan: engine.Plan{Number: 5}})
		default:
			_ = json.NewEncoder(w).Encode(now)
		}
	}))
	defer s.Close()
	defer http.DefaultClient.CloseIdleConnections()

	file := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(file, []byte(`{"number":5}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := runPlanProposal(t.Context(), []string{"-url", s.URL, "-parts", "3", "-moves", "0.5"}); err != nil {
		t.Fatal(err)
	}
	if err := runPlanApply(t.Context(), []string{"-url", s.URL, "-f", file, "-wait"}); err != nil {
		t.Fatal(err)
	}
	if err := runPlanRollback(t.Context(), []string{"-url", s.URL}); err != nil {
		t.Fatal(err)
	}
	want := "GET /v2/downbeat/plan/proposal?moves=0.5&parts=3 |POST /v2/downbeat/plan {\"number\":5}|GET /v2/downbeat/plan |POST /v2/downbeat/plan/rollback "
	if got := strings.Join(asked, "|"); got != want {
		t.Errorf("asked %s\nwant %s", got, want)
	}

	if err := os.WriteFile(file, []byte(`{"refuse":5}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{"409 Conflict: plan refused: older than what runs": {"-url", s.URL, "-f", file}, "no such file": {"-f", file + "x"}, "want table or json": {"-o", "xml"}} {
		if err := runPlanApply(t.Context(), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
