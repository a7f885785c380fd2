//go:build linux

package main

import (
	"strings"
	"testing"
	"time"

	"downbeat.dev/frontend/app"
)

// TestSessionsAreListed: a line for each session, and the stages of as many frames as were asked for.
func TestSessionsAreListed(t *testing.T) {
	ms := time.Millisecond
	status := &app.Status{Applications: []app.ApplicationStatus{{Name: "traffic", Latency: 200 * ms, Steps: []string{"detect", "crop"},
		Sessions: []app.SessionStatus{
			{Number: 1, Name: "gate", Rate: 6, Latency: 200 * ms, Standing: app.Standing{Frames: 200, InTime: 199, Late: 1, Recent: 0.995}},
			{Number: 2, Rate: 5, Latency: 100 * ms, Standing: app.Standing{Frames: 100, InTime: 50, Failed: 50, Skipped: 7, Recent: 0.5, Hurt: true}}},
		Latest: []app.FrameTrace{
			{Session: 1, Elapsed: 50 * ms, Budget: 200 * ms, Steps: []app.StepTrace{{To: 40 * ms, Requests: 1}, {From: 40 * ms, To: 50 * ms}}},
			{Session: 9, Budget: 200 * ms, Steps: make([]app.StepTrace, 2)}}}}}

	var out strings.Builder
	if err := printSessions(&out, status, 1); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"traffic      1 gate   6/s   200ms    200     99.50 %  1     0       0        99.5 %  kept",
		"traffic      2        5/s   100ms    100     50.00 %  0     50      7        50.0 %  broken",
		"traffic, session 1, 50ms of 200ms",
		"detect       |████████                                |     40ms  1 requests",
		"crop         |        ██                              |     10ms  0 requests",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "session 9") {
		t.Errorf("more frames than were asked for:\n%s", out.String())
	}

	for want, args := range map[string][]string{"-o xml: want table or json": {"-o", "xml"}, "-frames -1: want 0 or more": {"-frames", "-1"}} {
		err := runSessionsCommand(t.Context(), args)
		if err == nil || !strings.Contains(err.Error(), want) || exitCode(t.Context(), err) != 2 {
			t.Errorf("%v: %v, want a usage error that says %q", args, err, want)
		}
	}
}

// TestNoSessionIsSaid: a bare heading would leave open whether the gateway was asked.
func TestNoSessionIsSaid(t *testing.T) {
	var out strings.Builder
	if err := printSessions(&out, &app.Status{Applications: []app.ApplicationStatus{{Name: "traffic"}}}, 1); err != nil || out.String() != "No session is open.\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
