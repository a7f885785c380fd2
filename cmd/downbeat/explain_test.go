//go:build linux

package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"downbeat.dev/core/engine"
)

// explained is what a scheduler might say of a family under load.
var explained = engine.Explanation{
	Kinds: []engine.KindExplanation{{Name: "a100", GPUs: 4, Price: 62.5, PriceMinute: 31.25, Busy: 0.8, Bad: 0.001, Learning: 0.125}},
	Families: []engine.FamilyExplanation{
		{Family: "vehicle", Rate: 1000, Lately: engine.Answered{Seconds: 2, Drops: []engine.DropsByOneRule{{Rule: "window", Reason: "deadline_cannot_be_met", Text: "given up", Requests: 3}}},
			Minute:   engine.Answered{Seconds: 60, Answers: 10, Accuracy: 0.925, Variants: []engine.AnsweredByOne{{Model: "vehicle-l", Version: "1", Accuracy: 0.95, Share: 0.5}}},
			Variants: []engine.Offered{{Model: "vehicle-l", Version: "1", Accuracy: 0.95, Kind: "a100", Batch: 8, GPUTime: 1.5, LeftOut: "price: at 62.5 another is worth more"}},
			Next:     &engine.NextCost{Model: "vehicle-s", Kind: "a100", GPUTime: 0.5, Cost: 0.03125}},
		{Family: "vehicle", Floor: 0.95, Asked: true, Variants: []engine.Offered{{Model: "vehicle-s", Version: "1", Accuracy: 0.9, Kind: "a100", LeftOut: "below the floor of 0.95"}}},
	},
}

// TestExplainTellsAll: prices, shares, what was left out and why, drops by their rule, and what one request more costs;
// floors that nobody asked for only on demand.
func TestExplainTellsAll(t *testing.T) {
	text, err := json.Marshal(explained)
	if err != nil {
		t.Fatal(err)
	}
	asked := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path + " " + r.Header.Get("Authorization")
		_, _ = w.Write(text)
	}))
	defer s.Close()
	got, err := fetchStatus(t.Context(), s.URL+"/", "/v2/downbeat/explain", access{token: "secret"})
	if err != nil || asked != "/v2/downbeat/explain Bearer secret" {
		t.Fatalf("asked %q: %v", asked, err)
	}
	var x engine.Explanation
	if err := json.Unmarshal(got, &x); err != nil {
		t.Fatal(err)
	}

	var out strings.Builder
	if err := printExplanation(&out, &x, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"62.5", "31.25", "80 %", "0.10 %", "12.5 %", "PRICE (ACCURACY/GPU S)", "vehicle, accuracy 0 or more, asked without a floor: 1000 requests/s", "10 answered, by variants of accuracy 0.9250: vehicle-l 50.0 %",
		`3 dropped by "window" (deadline_cannot_be_met): given up`, "one request more: vehicle-s on a100, 0.5 ms of GPU time for 0.0312 of accuracy", "price: at 62.5 another is worth more"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	if n := strings.Count(out.String(), "vehicle, accuracy"); n != 1 {
		t.Errorf("%d classes in:\n%s", n, out.String())
	}
	out.Reset()
	if err := printExplanation(&out, &x, true); err != nil || strings.Count(out.String(), "vehicle, accuracy") != 2 || !strings.Contains(out.String(),
		"vehicle, accuracy 0.95 or more, asked with a floor: 0 requests/s, 0 queued\n  one request more: no variant would answer it\n  VARIANT") || !strings.Contains(out.String(), "vehicle-s:1  0.9       a100  –      –       below the floor of 0.95\n") {
		t.Errorf("%v:\n%s", err, out.String())
	}
}

// TestExplainRefusals: what was wrong is said.
func TestExplainRefusals(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	for want, args := range map[string][]string{
		"404 Not Found":      {"-url", s.URL},
		"want table or json": {"-o", "xml"},
		"-url gopher://127.0.0.1: want http://HOST:PORT": {"-url", "gopher://127.0.0.1"},
		"no such file":               {"-token-file", "/nowhere/secret"},
		"explain takes flags only":   {"vehicle"},
		"flag provided but not defi": {"-nonsense"},
	} {
		err := runExplain(t.Context(), args)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%v: %v, want %q", args, err, want)
		}
		if usage := want != "404 Not Found" && args[0] != "-token-file"; usage != (exitCode(t.Context(), err) == 2) {
			t.Errorf("%v: exit status %d, a usage error: %v", args, exitCode(t.Context(), err), usage)
		}
	}
}

// TestExplainSoonAfterTheStart: a family that has just begun is told of since its start, to fractions of a second; a minute later
// what came lately and what came in the last minute differ.
func TestExplainSoonAfterTheStart(t *testing.T) {
	for _, c := range []struct {
		lately, minute float64
		want           []string
	}{
		{0.4375, 0.4375, []string{"  since its start, 0.44 s: 7 answered"}},
		{0.04, 0.04, []string{"  since its start, 0.04 s: 7 answered"}},
		{5.3, 5.3, []string{"  since its start, 5.3 s: 7 answered"}},
		{5.3, 61.2, []string{"  last 5 s: 7 answered", "  last 61 s: 7 answered"}},
		{0, 0, nil},
	} {
		f := &engine.FamilyExplanation{Lately: engine.Answered{Seconds: c.lately, Answers: 7}, Minute: engine.Answered{Seconds: c.minute, Answers: 7}}
		var out strings.Builder
		if err := printFamily(&out, f); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%+v: no %q in:\n%s", c, want, out.String())
			}
		}
		if n := strings.Count(out.String(), "answered"); n != len(c.want) {
			t.Errorf("%+v: %d spans in:\n%s", c, n, out.String())
		}
	}
}
